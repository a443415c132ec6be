"""Runs one trial in this process: seeds, calls the training function, and classifies its end (error, out of memory)."""

import linecache
import reprlib
import sys
import sysconfig
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.checkpoint.save.snapshot import Buffer
from trainwright.engine.protocol import Died, Outcome, Raised, Returned, StoppedEarly, TrainFunction
from trainwright.errors import CheckpointError, InputError, MissingExtra, ObjectiveError, TrialMisuse
from trainwright.ledger.trials import RaisedAt
from trainwright.publishing import is_disk_full
from trainwright.train import Trial, TrialEnd, seed_all
from trainwright.train.assignment import Assignment, Channel, as_number, is_pruning
from trainwright.train.group import GroupFailed, join_process_group, leave_process_group

__all__ = ["raised_at", "run_assignment", "traceback_of"]

_OURS = str(Path(__file__).parents[2])
_STANDARD = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")  # anywhere: a site's modules bring their own
_LONGEST = 160  # characters of a source line


def run_assignment(
    train: TrainFunction, assignment: Assignment, channel: Channel, *, gpu: bool, buffer: Buffer | None = None
) -> Outcome:
    """Call `train` on a trial of `assignment` and return how it ended. KeyboardInterrupt is let through.

    `buffer` has what this process saved last of the trial. With a world size above 1 this is one of its ranks: it joins
    their process group, leaves it after a good end, and has to be ended after any other.
    """
    started = time.monotonic()
    # Before anything of the user's runs, so that a trial is the same in whatever process.
    seed_all(assignment.seed)
    try:
        channel = join_process_group(assignment, channel, gpu=gpu)
    except GroupFailed as error:
        return Died(why=str(error), blame=False, seconds=time.monotonic() - started)
    except MissingExtra as error:
        return Raised(failure="exception", message=str(error), seconds=time.monotonic() - started)
    trial = Trial(assignment, channel, gpu=gpu, buffer=buffer)
    try:
        outcome: Outcome = Returned(value=_plain_result(train(trial)), **_close_trial(trial, started))
    except TrialEnd as end:
        outcome = StoppedEarly(preempted=end.preempted, **_close_trial(trial, started))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 -- whatever a user's code raises becomes a record, SystemExit too
        # Optuna's way to end a trial, which functions written for it use.
        if is_pruning(error) and trial.end_by_itself():
            return StoppedEarly(**_close_trial(trial, started))
        return Raised(
            failure=_classify_failure(error),
            message=_first_sentence(error),
            traceback=traceback_of(error),
            raised=raised_at(error),
            **_close_trial(trial, started),
        )
    if assignment.world_size > 1:
        del trial
        leave_process_group()
    return outcome


def _plain_result(value: Any) -> float | dict[str, float] | None:
    """Return what `train` returned as plain numbers: no driver should need the libraries that made them."""
    if value is None:
        return None
    named = value if isinstance(value, Mapping) else {"": value}
    numbers = {str(name): as_number(item) for name, item in named.items()}
    # Tensors and NumPy scalars become floats; what is no number refuses the whole result.
    plain = {name: number for name, number in numbers.items() if number is not None}
    if len(plain) < len(numbers):
        raise ObjectiveError(f"train returned {reprlib.repr(value)}; return a number, a dict of numbers, or None")
    return plain if named is value else plain[""]


def _close_trial(trial: Trial, started: float) -> dict[str, Any]:
    records, metrics, epoch = trial.close()
    return {
        "records": tuple(records),
        "metrics": metrics,
        "epoch": epoch,
        "seconds": time.monotonic() - started,
    }


def _classify_failure(error: BaseException) -> str:
    if isinstance(error, ObjectiveError):
        return "bad_objective"
    if isinstance(error, TrialMisuse):
        return "misuse"
    # A disk without room is no fault of the trial, which can run again where there is room.
    if isinstance(error, CheckpointError) and is_disk_full(error.__cause__):
        return "no_room"
    return "out_of_memory" if _is_out_of_memory(error) else "exception"


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether the host's memory or a GPU's was too small."""
    torch = sys.modules.get("torch")
    return isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError))


def _first_sentence(error: BaseException) -> str:
    try:
        text = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 -- the error's own __str__ is the user's code too
        text = []
    first = text[0] if text else ""
    return first if isinstance(error, InputError) else f"{type(error).__name__}: {first}".removesuffix(": ")


def raised_at(error: BaseException) -> RaisedAt | None:
    """Return the innermost line of an error's traceback that is a user's own, or None if there is none.

    A line of a library counts only if no other is the user's, as of a project that is installed; a line of the standard
    library or of ours never.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return RaisedAt(type(error).__name__, error.filename, error.lineno, (error.text or "").strip()[:_LONGEST])
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    # Generated code, such as the constructor of a dataclass, has no file.
    lines = [(file, line) for file, line in frames if not _is_ours(file) and file != "<string>"]
    # A user's project may itself be installed; the standard library never counts.
    installed = [each for each in lines if any(name in each[0] for name in _INSTALLED)]
    own = [each for each in lines if each not in installed and not each[0].startswith(_STANDARD)]
    if not (found := own or installed):
        return None
    file, line = found[-1]
    return RaisedAt(type(error).__name__, file, line, linecache.getline(file, line).strip()[:_LONGEST])


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error as text, from the first line that is not ours."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    # An error that only lines of ours raised keeps them all: there is nothing else to tell.
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))


def _is_ours(file: str) -> bool:
    return file.startswith((_OURS, "<frozen"))
