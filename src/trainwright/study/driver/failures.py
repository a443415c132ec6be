"""Failed trials: which are alike, the sentence that says why one failed, and records of failures that must last."""

import shlex
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from trainwright.engine.admission import REJECTED
from trainwright.errors import TrainwrightError
from trainwright.ledger import Record, State, Status, TrialState, facts
from trainwright.ledger.trials import End, Failure
from trainwright.study.study_log import StudyLog

__all__ = ["MISUSE", "StudyFailed", "alike", "gave_up", "secure_failures", "sentence_of"]

MISUSE = "misuse"
"""The failure of a function that asks of its trial what no trial has."""

_BY_CONFIGURATION = frozenset({"out_of_memory", "timeout", REJECTED})
_WITHOUT_RESULT = frozenset({Status.FAILED, Status.ABANDONED})
_NOT_FINITE = (" is nan ", " is inf ", " is -inf ")


class StudyFailed(TrainwrightError):
    """Trials fail again and again, so that going on makes no sense; what was done is kept."""


def gave_up(trial: TrialState) -> bool:
    """Whether a trial failed, or was lost so often that it is given up."""
    return trial.status is Status.FAILED or (trial.status is Status.ABANDONED and trial.end is None)


def secure_failures(log: StudyLog, safe: set[int]) -> None:
    """Write again what left trials without a result, unless it is sure to last: another takes the place of each.

    Others read a record before it is synced, so it may be lost after this process has acted on it. What its writer
    went on from in the same journal is synced, and so is what this process wrote. `safe` grows by what is dealt with.
    """
    state = log.state
    # A late result may have come for one that was given up.
    safe.intersection_update([number for number in safe if state.trials[number].status in _WITHOUT_RESULT])
    if state.allowed(0) <= len(safe):
        return
    for trial in list(state.trials.values()):
        if trial.status in _WITHOUT_RESULT and trial.number not in safe:
            end = trial.end
            places = [lease.lost_by for lease in trial.vain_losses] if end is None else [end.order[1:]]
            others = [Record("", writer=writer, seq=seq + 1) for writer, seq in places if writer != log.ledger.writer]
            if not all(map(state.knows, others)):
                log.append(*_repeat_end(trial, end))
            safe.add(trial.number)


def _repeat_end(trial: TrialState, end: End | None) -> list[Record]:
    """Return the records again from which it follows that a trial has no result."""
    if end is None:
        return [facts.lost(trial.number, it.number, why=it.why, blame=it.blamed) for it in trial.vain_losses]
    if end.failure is None:
        return [facts.finished(trial.number, trial.lease, reason=end.reason, values={}, wall_seconds=end.wall_seconds)]
    said = asdict(end.failure)
    return [facts.failed(trial.number, trial.lease, failure=said.pop("kind"), wall_seconds=end.wall_seconds, **said)]


def alike(state: State, trial: TrialState, before: Collection[int]) -> list[int]:
    """Return the trials that failed as `trial` did, it among them; those of `before` do not count.

    Alike are errors of one type, file and line; without a line, of one sentence. None are alike where the cause may be
    the configuration (too little memory, too little time, a loss that is not finite), or where another trial has come
    further than all of them.
    """
    known = _failure_key(trial)
    if known is None:
        return []
    # A trial that came further shows that the line can be passed.
    same, others = [], 0
    for number, other in state.trials.items():
        if number not in before and gave_up(other) and _failure_key(other) == known:
            same.append(number)
        else:
            others = max(others, other.epoch)
    return same if others <= max((state.trials[number].epoch for number in same), default=0) else []


def sentence_of(trial: TrialState, directory: Path | None) -> str:
    """Return why a trial failed, where in the user's code, and how to see more."""
    failure = trial.failure
    if failure is None:
        lost = f"trial {trial.number} was lost {len(trial.leases)} times: its process was killed"
        return f"{lost}{_log_hint(trial, directory)}"
    at = ""
    if failure.raised is not None:
        source = f", in `{failure.raised.source}`" if failure.raised.source else ""
        at = f" at {failure.raised.place}{source}"
    return f"{failure.message}{at}{_traceback_hint(failure, trial.number, directory)}{_log_hint(trial, directory)}"


def _failure_key(trial: TrialState) -> tuple[object, ...] | None:
    failure = trial.failure
    if failure is None:
        return ("lost",)
    if failure.kind in _BY_CONFIGURATION or any(each in failure.message for each in _NOT_FINITE):
        return None
    if failure.raised is None:
        # Our own sentences may name the trial.
        return failure.kind, failure.message.replace(f"trial {trial.number}:", "")
    return failure.raised.error, failure.raised.file, failure.raised.line


def _traceback_hint(failure: Failure, number: int, directory: Path | None) -> str:
    if not failure.traceback or directory is None:
        return ""
    return f"; its traceback: trainwright status {shlex.quote(str(directory))} --trial {number}"


def _log_hint(trial: TrialState, directory: Path | None) -> str:
    if directory is None:
        return ""
    log = directory / "logs" / f"trial-{trial.number:06d}" / f"lease-{trial.lease}.log"
    return f"; its output: {log}" if log.exists() else ""
