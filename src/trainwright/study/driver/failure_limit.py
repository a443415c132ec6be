"""Decides when failed trials end a run: many without one result, two equal ones, or one that every trial would have."""

from dataclasses import dataclass

from trainwright.engine.admission import REJECTED
from trainwright.ledger import Status, TrialState
from trainwright.study.driver.failures import MISUSE, StudyFailed, alike, gave_up, sentence_of
from trainwright.study.study_log import StudyLog

__all__ = ["FailureLimit"]

_HOPELESS, _ALIKE = 10, 2
"""So many failures without one success end a run, or as many as trials run if that is more; or so many alike."""
_MOST_FAILURES = 100
"""So many failures end a run that was told no other limit, or as many as trials run or have a result if more."""


@dataclass
class FailureLimit:
    """The failures that one run bears; at more it ends with `StudyFailed`."""

    log: StudyLog
    most: int | None
    """So many failures end it, whatever has succeeded; None for a limit that grows with what runs and succeeds."""

    def __post_init__(self) -> None:
        # Those of earlier runs say nothing of this one.
        self._before = frozenset(number for number, trial in self.log.state.trials.items() if gave_up(trial))
        self._rejected = 0

    def check(self, trial: TrialState) -> None:
        """Judge the run by a trial that has just ended."""
        if not gave_up(trial):
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
