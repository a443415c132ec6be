"""Median: stop a trial whose best loss is worse than the median of the others' running means (Vizier, KDD 2017)."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from trainwright.schedule.rules.curve_rule import Curve, CurveRule, Curves
from trainwright.schedule.rules.promotion_rule import CONTINUE, Continue, Reason, Stop, TrialView, Verdict
from trainwright.schedule.rungs.order_statistics import LossEntry, OrderStatistics
from trainwright.validators import integer, optional

__all__ = ["Median"]


@dataclass(slots=True)
class _Curve(Curve):
    total: float = 0.0
    count: int = 0
    best: float = float("inf")


@dataclass(slots=True)
class _Index(Curves):
    epochs: dict[int, OrderStatistics] = field(default_factory=dict)  # running means at each compared epoch


@dataclass(frozen=True, kw_only=True, slots=True)
class Median(CurveRule):
    """At every `interval`-th epoch from `min_epochs` on, compare at that same epoch with the others that reached it.

    A trial stops iff its best loss up to there is above the median of the other trials' mean losses up to there; with
    fewer than `min_trials` others it goes on. O(log n) per report.
    """

    index: ClassVar = _Index
    curve: ClassVar = _Curve

    min_epochs: Annotated[int, integer(minimum=1, of="epochs")] = 1
    interval: Annotated[int, integer(minimum=1, of="epochs")] = 1
    min_trials: Annotated[int, integer(minimum=1)] = 5
    max_epochs: Annotated[int | None, optional(integer(minimum=1, of="epochs"))] = None

    def judge(self, index: _Index, curve: _Curve, loss: float) -> Verdict:
        """Bring the trial's running mean up to date and, at a compared epoch, judge it against the others."""
        curve.total, curve.count, curve.best = curve.total + loss, curve.count + 1, min(curve.best, loss)
        if curve.epoch < self.min_epochs or (curve.epoch - self.min_epochs) % self.interval:
            return curve.verdict if isinstance(curve.verdict, Stop) else CONTINUE
        # The trial's best loss is compared with the running means of the others, as published.
        others = index.epochs.setdefault(curve.epoch, OrderStatistics())
        verdict = self._compared(others, curve.epoch, curve.best)
        others.push(LossEntry(curve.total / curve.count, curve.trial))
        return verdict

    def _compared(self, others: OrderStatistics, epoch: int, best: float) -> Verdict:
        if len(others) < self.min_trials:
            return CONTINUE
        median = others.quantile((len(others) - 1) / 2)
        reason = Reason(rule="Median", epoch=epoch, value=best, threshold=median)
        return Stop(reason) if best > median else Continue(reason)

    def next_epoch(self, index: _Index, trial: TrialView) -> int:  # noqa: ARG002 -- likewise
        """Return the next compared epoch."""
        if trial.epoch < self.min_epochs:
            return self.min_epochs
        return trial.epoch + self.interval - (trial.epoch - self.min_epochs) % self.interval
