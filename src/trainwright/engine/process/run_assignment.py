"""Run one assignment in this process: seed, call the training function, and classify how it ended."""

import errno
import reprlib
import sys
import time
from collections.abc import Mapping
from typing import Any

from trainwright.engine.process.places import raised_at, traceback_of
from trainwright.engine.protocol import Died, Outcome, Raised, Returned, StoppedEarly, TrainFunction
from trainwright.errors import CheckpointError, InputError, MissingExtra, ObjectiveError, TrialMisuse
from trainwright.train import Assignment, Channel, Trial, TrialEnd, as_number, seed_all
from trainwright.train.group import GroupFailed, join, part
from trainwright.train.misuse import is_pruning

__all__ = ["run_assignment"]


def run_assignment(train: TrainFunction, assignment: Assignment, channel: Channel, *, gpu: bool) -> Outcome:
    """Call `train` on a trial of `assignment` and return how it ended. KeyboardInterrupt is let through.

    With a world size above 1 this is one of its ranks: it joins their process group, leaves it after a good end, and
    has to be ended after any other.
    """
    started = time.monotonic()
    seed_all(assignment.seed)
    try:
        channel = join(assignment, channel, gpu=gpu)
    except GroupFailed as error:
        return Died(why=str(error), blame=False, seconds=time.monotonic() - started)
    except MissingExtra as error:
        return Raised(failure="exception", message=str(error), seconds=time.monotonic() - started)
    trial = Trial(assignment, channel, gpu=gpu)
    outcome: Outcome
    try:
        value = _plain_result(train(trial))
        outcome = Returned(value=value, **_close_trial(trial, started))
    except TrialEnd:
        outcome = StoppedEarly(**_close_trial(trial, started))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 -- whatever a user's code raises becomes a record, SystemExit too
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
        part()
    return outcome


def _plain_result(value: Any) -> float | dict[str, float] | None:
    """Return what `train` returned as plain numbers: no driver should need the libraries that made them."""
    if value is None:
        return None
    named = value if isinstance(value, Mapping) else {"": value}
    numbers = {str(name): as_number(item) for name, item in named.items()}
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
    cause = error.__cause__
    if (
        isinstance(error, CheckpointError)
        and isinstance(cause, OSError)
        and cause.errno in {errno.ENOSPC, errno.EDQUOT}
    ):
        return "no_room"
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return "out_of_memory"
    return "exception"


def _first_sentence(error: BaseException) -> str:
    try:
        text = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 -- the error's own __str__ is the user's code too
        text = []
    first = text[0] if text else ""
    return first if isinstance(error, InputError) else f"{type(error).__name__}: {first}".removesuffix(": ")
