"""Median: stop a trial whose best loss is worse than the median of the others' running means (Vizier, KDD 2017)."""

from dataclasses import dataclass, field

from trainwright.errors import ScheduleError
from trainwright.schedule._halves import Entry, Halves
from trainwright.schedule._rule import (
    CONTINUE,
    Continue,
    Event,
    Reason,
    Reported,
    Rule,
    Stop,
    TrialView,
    Verdict,
    View,
    check_epochs,
)

__all__ = ["Median"]


@dataclass(slots=True)
class _Curve:
    epoch: int = 0
    total: float = 0.0
    count: int = 0
    best: float = float("inf")
    verdict: Verdict = CONTINUE


@dataclass(slots=True)
class _Index:
    epochs: dict[int, Halves] = field(default_factory=dict)  # running means at each compared epoch
    curves: dict[int, _Curve] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Median(Rule):
    """At every `interval`-th epoch from `min_epochs` on, compare at that same epoch with the others that reached it.

    A trial stops iff its best loss up to there is above the median of the other trials' mean losses up to there; with
    fewer than `min_trials` others it goes on. O(log n) per report.
    """

    min_epochs: int = 1
    interval: int = 1
    min_trials: int = 5
    max_epochs: int | None = None

    def __post_init__(self) -> None:
        names = ["min_epochs", "interval", *(["max_epochs"] if self.max_epochs is not None else [])]
        check_epochs("Median", [(name, getattr(self, name)) for name in names])
        if isinstance(self.min_trials, bool) or not isinstance(self.min_trials, int) or self.min_trials < 1:
            raise ScheduleError(f"Median.min_trials: got {self.min_trials!r}; allowed: a whole number >= 1")

    def empty(self) -> _Index:
        """Return an index without curves."""
        return _Index()

    def fold(self, index: _Index, event: Event) -> _Index:
        """Bring the trial's running mean up to date and, at a compared epoch, judge it against the others."""
        if not isinstance(event, Reported):
            return index
        curve = index.curves.setdefault(event.trial, _Curve())
        if event.epoch <= curve.epoch:
            return index
        loss = event.losses[0]
        curve.epoch, curve.total, curve.count = event.epoch, curve.total + loss, curve.count + 1
        curve.best = min(curve.best, loss)
        if event.epoch >= self.min_epochs and (event.epoch - self.min_epochs) % self.interval == 0:
            others = index.epochs.setdefault(event.epoch, Halves())
            curve.verdict = self._judge(others, event.epoch, curve.best)
            others.push(Entry(curve.total / curve.count, event.trial))
        elif not isinstance(curve.verdict, Stop):
            curve.verdict = CONTINUE
        return index

    def _judge(self, others: Halves, epoch: int, best: float) -> Verdict:
        if len(others) < self.min_trials:
            return CONTINUE
        median = others.quantile((len(others) - 1) / 2)
        reason = Reason(rule="Median", epoch=epoch, value=best, threshold=median)
        return Stop(reason) if best > median else Continue(reason)

    def on_report(self, index: _Index, view: View, trial: TrialView) -> Verdict:  # noqa: ARG002 -- the protocol's
        """Return the verdict of the trial's latest report."""
        curve = index.curves.get(trial.number)
        return curve.verdict if curve is not None else CONTINUE

    def next_epoch(self, index: _Index, trial: TrialView) -> int:  # noqa: ARG002 -- likewise
        """Return the next compared epoch."""
        if trial.epoch < self.min_epochs:
            return self.min_epochs
        return trial.epoch + self.interval - (trial.epoch - self.min_epochs) % self.interval
