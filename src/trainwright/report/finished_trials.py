"""The ended trials of a study, each told once: what exports write that grow while the study runs."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trainwright.errors import InputError, StudyError
from trainwright.ledger import Cursor, State, Status, TrialState, blocks, fold, open_ledger
from trainwright.ledger.rows import final_metrics
from trainwright.study.notes import JobNote

__all__ = ["FinishedTrials", "Growing", "follow", "metric_points"]

_ENDS = frozenset({Status.COMPLETE, Status.STOPPED, Status.FAILED, Status.ABANDONED})


class Growing(Protocol):
    """An export that was written once and goes on with the study."""

    finished: "FinishedTrials"

    def update(self) -> int:
        """Append the trials that have ended since the last call; return how many."""
        ...


class FinishedTrials:
    """Reads a study's ledger and tells which trials have ended since, in the order of their numbers.

    With `lost`, lost trials count as ended; without, only once it is settled what becomes of them. `last` leaves all
    but so many out of the first `news`.
    """

    def __init__(self, directory: str | Path, *, last: int | None = None, lost: bool = False) -> None:
        if last is not None and last < 1:
            raise InputError(f"export of the last trials: got {last}; allowed: a number >= 1, or None for all")
        self.name = Path(directory).resolve().name
        self.state = State()
        self._statuses = _ENDS | ({Status.LOST} if lost else set())
        self._last = last
        self._reported: set[int] = set()
        self._ledger = open_ledger(directory)
        self._cursor: Cursor | None = None
        self.study_id = self._ledger.study_id
        self.read()
        if self.state.space is None:
            raise StudyError(f"the study in {directory} has no records yet; run it before it is exported")

    def read(self) -> None:
        """Take in what the ledger holds by now."""
        # Blocks, so that a long ledger needs no memory for all of its records.
        for records, cursor in blocks(self._ledger, self._cursor):
            self._cursor = cursor
            fold(records, into=self.state)

    def news(self) -> list[TrialState]:
        """Return the trials that ended since the last call."""
        # In the order of numbers, so that an export repeated from the start is the same.
        ended = [number for number, trial in self.state.trials.items() if trial.status in self._statuses]
        new = sorted(set(ended) - self._reported)
        self._reported.update(new)
        # `last` cuts the first batch only; later trials are all new.
        chosen, self._last = new[-self._last if self._last else 0 :], None
        return [self.state.trials[number] for number in chosen]

    @property
    def settled(self) -> bool:
        """Whether the study has all the results that it was last run for, and nothing runs any more."""
        # A lost trial may still be taken over by a worker that comes later.
        job, counts = JobNote.last(self.state), self.state.counts
        if job is None or job.trials is None or counts[Status.RUNNING] or counts[Status.LOST]:
            return False
        return self.state.results >= job.trials


def follow(exports: Sequence[Growing], *, poll_seconds: float = 2.0) -> None:
    """Go on with exports until the study has the results that it was run for, or until Ctrl-C."""
    while not all(export.finished.settled for export in exports):
        time.sleep(poll_seconds)
        for export in exports:
            export.update()


def metric_points(trial: TrialState) -> Iterator[tuple[float, int, Mapping[str, float]]]:
    """Yield time, epoch and metrics of each report, then what the result of an ended trial holds beyond the last."""
    reported: Mapping[str, float] = {}
    for epoch in sorted(trial.reports):
        report = trial.reports[epoch]
        reported = report.metrics
        yield report.at, epoch, reported
    # What the last report has already said would be a second point at the end of the curve.
    final = final_metrics(trial).items()
    result = {name: value for name, value in final if reported.get(name) != value and not math.isnan(value)}
    if result:
        yield trial.end.at if trial.end is not None else 0.0, trial.epoch, result
