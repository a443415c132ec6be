"""Estimate which epochs can end within the wall time of a run."""

import math
import statistics
import time
from collections.abc import Mapping

from trainwright.ledger import Record, TrialState

__all__ = ["TimeLeft"]

_EARLY_SHARE = 0.1
"""A run leaves before its end by the grace, but by no more than this share of its time."""
_SPARE_SHARE = 0.1
"""By how much longer an epoch may take than the trial's last ones."""
_KNOWN = 3
"""The last epochs of a trial from which the next one is estimated."""


class TimeLeft:
    """The wall time of one run, and how long epochs take: a projection of reports.

    A trial's next epoch is expected to take the median of its last three and a tenth. Of a trial without a report only
    a bound is known: the shortest epoch of the study.
    """

    kinds = frozenset({"reported"})
    """The records that it is told of."""

    def __init__(self, wall_seconds: float | None, grace_seconds: float, trials: Mapping[int, TrialState]) -> None:
        self.end = math.inf if wall_seconds is None else time.monotonic() + wall_seconds
        """When the time is over, by the monotonic clock."""
        early = 0.0 if wall_seconds is None else min(grace_seconds, _EARLY_SHARE * wall_seconds)
        self._leave_at = self.end - early
        self._last: dict[int, tuple[int, float]] = {}  # of each trial: lease and seconds of its last report
        self._epochs: dict[int, tuple[float, ...]] = {}  # seconds of its last epochs
        self._shortest = 0.0
        for number, trial in trials.items() if wall_seconds is not None else ():
            for _, report in sorted(trial.reports.items()):
                self._add_report(number, report.lease, report.wall_seconds)

    @property
    def over(self) -> bool:
        """Whether to leave now: what runs has the grace for its epoch."""
        return time.monotonic() >= self._leave_at

    def fits(self, number: int | None = None) -> bool:
        """Whether an epoch of a trial (None: of any) that begins now can end in time, as far as that is known."""
        if math.isinf(self.end):
            return True
        known = self._epochs.get(number) if number is not None else None
        seconds = (1 + _SPARE_SHARE) * statistics.median(known) if known else self._shortest
        return time.monotonic() + seconds <= self.end

    def fold(self, record: Record, trial: TrialState | None) -> None:
        """Measure the epoch that has ended with a report."""
        if trial is not None:
            self._add_report(trial.number, record.lease or 1, record.body["wall_seconds"])

    def _add_report(self, number: int, lease: int, seconds: float) -> None:
        """Take a report made so many seconds after the start of its lease; 0 is one told after the death of a run."""
        before_lease, before = self._last.get(number, (0, 0.0))
        self._last[number] = lease, seconds
        took = seconds - before if lease == before_lease else seconds
        if took > 0.0:
            self._epochs[number] = (*self._epochs.get(number, ()), took)[-_KNOWN:]
            self._shortest = min(self._shortest or math.inf, took)
