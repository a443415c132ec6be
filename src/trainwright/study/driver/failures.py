"""Decides when failed trials end a run: many without one result, two equal ones, or one that every trial would have."""

import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from trainwright.engine.admission import REJECTED
from trainwright.errors import TrainwrightError
from trainwright.ledger import Record, State, Status, TrialState, facts
from trainwright.ledger.trials import End, Failure
from trainwright.study.study_log import StudyLog

__all__ = ["FailureLimit", "StudyFailed", "alike", "secure_failures", "sentence_of"]

MISUSE = "misuse"
"""The failure of a function that asks of its trial what no trial has."""

_BY_CONFIGURATION = frozenset({"out_of_memory", "timeout", REJECTED})
_WITHOUT_RESULT = frozenset({Status.FAILED, Status.ABANDONED})
_NOT_FINITE = (" is nan ", " is inf ", " is -inf ")
_HOPELESS, _ALIKE = 10, 2
"""So many failures without one success end a run, or as many as trials run if that is more; or so many alike."""
_MOST_FAILURES = 100
"""So many failures end a run that was told no other limit, or as many as trials run or have a result if more."""


class StudyFailed(TrainwrightError):
    """Trials fail again and again, so that going on makes no sense; what was done is kept."""


@dataclass
class FailureLimit:
    """The failures that one run bears; at more it ends with `StudyFailed`."""

    log: StudyLog
    most: int | None
    """So many failures end it, whatever has succeeded; None for a limit that grows with what runs and succeeds."""

    def __post_init__(self) -> None:
        # Those of earlier runs say nothing of this one.
        self._before = frozenset(number for number, trial in self.log.state.trials.items() if _gave_up(trial))
        self._rejected = 0

    def check(self, trial: TrialState) -> None:
        """Judge the run by a trial that has just ended."""
        if not _gave_up(trial):
            return
        log, state, counts = self.log, self.log.state, self.log.state.counts
        self._rejected += trial.failure is not None and trial.failure.kind == REJECTED
        failed = counts[Status.FAILED] + counts[Status.ABANDONED]
        # A trial that does not fit into memory says nothing of others.
        broken = failed - len(self._before) - self._rejected
        same: list[int] = []
        if not state.results:
            same = alike(state, trial, self._before)
            # Another worker's first success may be on its way: read it before the run is given up.
            if broken >= _HOPELESS or len(same) >= _ALIKE:
                log.refresh()
        why = sentence_of(trial, log.directory)
        if trial.failure is not None and trial.failure.kind == MISUSE:
            raise StudyFailed(why)
        if len(same) >= _ALIKE and self.most is None and not state.results:
            raise StudyFailed(f"{len(same)} trials have failed in the same way, none has a result: {why}")
        # In a large team that many may fail before any can succeed; where most succeed, many may diverge.
        running = counts[Status.RUNNING]
        most = max(_MOST_FAILURES, running, state.results) if self.most is None else self.most
        if failed >= most or (broken >= max(_HOPELESS, running) and not state.results):
            more = "; a larger max_failures lets it go on" if state.results else ""
            raise StudyFailed(f"{failed} trials have failed, {state.results} have a result; the last: {why}{more}")


def _gave_up(trial: TrialState) -> bool:
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
        if number not in before and _gave_up(other) and _failure_key(other) == known:
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
