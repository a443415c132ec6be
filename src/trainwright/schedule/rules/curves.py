"""Rules that judge a trial at each report by its curve: Median (Vizier, KDD 2017), Patience and Plateau."""

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.promotion_rule import (
    CONTINUE,
    BaseRule,
    Continue,
    Event,
    Reason,
    Reported,
    RuleView,
    Stop,
    TrialView,
    Verdict,
)
from trainwright.schedule.rungs.order_statistics import LossEntry, OrderStatistics
from trainwright.settings import Settings
from trainwright.validators import integer, number, optional

__all__ = ["Curve", "CurveRule", "Curves", "Median", "Patience", "Plateau"]

_LENGTH = optional(integer(minimum=1, of="epochs"))


@dataclass(slots=True)
class Curve:
    """What is kept of a trial's curve; rules add to it."""

    trial: int
    epoch: int = 0
    verdict: Verdict = CONTINUE


@dataclass(slots=True)
class Curves:
    """The index of such a rule: curves by trial."""

    curves: dict[int, Any] = field(default_factory=dict)


class CurveRule(BaseRule, Settings, ABC, error=ScheduleError):
    """Subclasses say of what classes index and curves are, and judge a new report."""

    index: ClassVar[type[Curves]] = Curves
    curve: ClassVar[type[Curve]]

    @abstractmethod
    def judge(self, index: Any, curve: Any, loss: float) -> Verdict:
        """Take the loss at `curve.epoch` into the curve and return the verdict."""

    def empty(self) -> Curves:
        """Return an index without curves."""
        return self.index()

    def fold(self, index: Curves, event: Event) -> Curves:
        """Judge a report, unless it is an old one."""
        if isinstance(event, Reported):
            curve = index.curves.setdefault(event.trial, self.curve(event.trial))
            # A repeated epoch, as after a restart, has been judged.
            if event.epoch > curve.epoch:
                curve.epoch = event.epoch
                curve.verdict = self.judge(index, curve, event.losses[0])
        return index

    def on_report(self, index: Curves, view: RuleView, trial: TrialView) -> Verdict:  # noqa: ARG002 -- the protocol's
        """Return the verdict of the trial's latest report."""
        curve = index.curves.get(trial.number)
        return curve.verdict if curve is not None else CONTINUE


@dataclass(slots=True)
class _MeanCurve(Curve):
    total: float = 0.0
    count: int = 0
    best: float = float("inf")


@dataclass(slots=True)
class _MedianIndex(Curves):
    epochs: dict[int, OrderStatistics] = field(default_factory=dict)  # running means at each compared epoch


@dataclass(frozen=True, kw_only=True, slots=True)
class Median(CurveRule):
    """At every `interval`-th epoch from `min_epochs` on, compare at that same epoch with the others that reached it.

    A trial stops iff its best loss up to there is above the median of the other trials' mean losses up to there; with
    fewer than `min_trials` others it goes on. O(log n) per report.
    """

    index: ClassVar = _MedianIndex
    curve: ClassVar = _MeanCurve

    min_epochs: Annotated[int, integer(minimum=1, of="epochs")] = 1
    interval: Annotated[int, integer(minimum=1, of="epochs")] = 1
    min_trials: Annotated[int, integer(minimum=1)] = 5
    max_epochs: Annotated[int | None, _LENGTH] = None

    def judge(self, index: _MedianIndex, curve: _MeanCurve, loss: float) -> Verdict:
        """Bring the trial's running mean up to date and, at a compared epoch, judge it against the others."""
        curve.total, curve.count, curve.best = curve.total + loss, curve.count + 1, min(curve.best, loss)
        if curve.epoch < self.min_epochs or (curve.epoch - self.min_epochs) % self.interval:
            return curve.verdict if isinstance(curve.verdict, Stop) else CONTINUE
        # The trial's best loss is compared with the running means of the others, as published.
        others = index.epochs.setdefault(curve.epoch, OrderStatistics())
        verdict = self._compare_median(others, curve.epoch, curve.best)
        # Entered after the comparison: a trial is not among its own others.
        others.push(LossEntry(curve.total / curve.count, curve.trial))
        return verdict

    def _compare_median(self, others: OrderStatistics, epoch: int, best: float) -> Verdict:
        if len(others) < self.min_trials:
            return CONTINUE
        median = others.quantile((len(others) - 1) / 2)
        reason = Reason(rule="Median", epoch=epoch, value=best, threshold=median)
        return Stop(reason) if best > median else Continue(reason)

    def next_epoch(self, index: _MedianIndex, trial: TrialView) -> int:  # noqa: ARG002 -- likewise
        """Return the next compared epoch."""
        if trial.epoch < self.min_epochs:
            return self.min_epochs
        return trial.epoch + self.interval - (trial.epoch - self.min_epochs) % self.interval


@dataclass(slots=True)
class _BestCurve(Curve):
    best: deque[tuple[int, float]] = field(default_factory=deque)  # when it fell, and to what; from the window's start


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience(CurveRule):
    """Stop iff the best loss has not fallen by more than `min_delta` during the last `epochs`; amortised O(1).

    `epochs` left out is a quarter of `max_epochs`, rounded up. A trial without reports so long ago goes on.
    """

    curve: ClassVar = _BestCurve

    epochs: Annotated[int | None, _LENGTH] = None
    min_delta: Annotated[float, number(minimum=0)] = 0.0
    max_epochs: Annotated[int | None, _LENGTH] = None

    def check_together(self) -> None:
        """Refuse a rule of which neither the window nor the length is known."""
        if self.epochs is None and self.max_epochs is None:
            raise ScheduleError("Patience.epochs: got None; allowed: a whole number of epochs >= 1, or give max_epochs")

    @property
    def window(self) -> int:
        """After how many epochs without progress a trial stops."""
        return self.epochs if self.epochs is not None else -(-(self.max_epochs or 1) // 4)

    def judge(self, index: Curves, curve: _BestCurve, loss: float) -> Verdict:  # noqa: ARG002 -- trials are on their own
        """Compare the best loss with what it was when the window began."""
        if not curve.best or loss < curve.best[-1][1]:
            curve.best.append((curve.epoch, loss))
        # Keep the last improvement before the window, which is what the loss was when it began.
        start = curve.epoch - self.window
        while len(curve.best) > 1 and curve.best[1][0] <= start:
            curve.best.popleft()
        before, now = curve.best[0], curve.best[-1][1]
        if before[0] > start:
            return CONTINUE
        threshold = before[1] - self.min_delta
        reason = Reason(rule="Patience", epoch=curve.epoch, value=now, threshold=threshold)
        # With min_delta=0 an equal loss is no progress.
        stays = now >= threshold
        return Stop(reason) if stays else Continue(reason)

    def next_epoch(self, index: Curves, trial: TrialView) -> int:
        """Return the end of the window that began with the last progress before it."""
        curve = index.curves.get(trial.number)
        return max(trial.epoch + 1, 1 + self.window if curve is None else curve.best[0][0] + self.window)


@dataclass(slots=True)
class _SpanCurve(Curve):
    count: int = 0
    least: float = math.inf  # of the finite losses
    greatest: float = -math.inf
    latest: deque[float] = field(default_factory=deque)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plateau(CurveRule):
    """Stop iff the last `window` losses span at most `tolerance` times what the whole curve spans; O(window).

    Judged once a curve has more than `window` points; infinite losses have no span, so a window with one goes on.
    """

    curve: ClassVar = _SpanCurve

    window: Annotated[int, integer(minimum=2, of="reports")] = 5
    tolerance: Annotated[float, number(minimum=0, below=1)] = 0.01
    max_epochs: Annotated[int | None, _LENGTH] = None

    def judge(self, index: Curves, curve: _SpanCurve, loss: float) -> Verdict:  # noqa: ARG002 -- trials are on their own
        """Compare the span of the window with that of the curve."""
        curve.count += 1
        curve.latest.append(loss)
        if len(curve.latest) > self.window:
            curve.latest.popleft()
        if math.isfinite(loss):
            curve.least, curve.greatest = min(curve.least, loss), max(curve.greatest, loss)
        greatest = max(curve.latest)
        if curve.count <= self.window or math.isinf(greatest):
            return CONTINUE
        # The span of the window relative to that of the whole curve.
        span, threshold = greatest - min(curve.latest), self.tolerance * (curve.greatest - curve.least)
        reason = Reason(rule="Plateau", epoch=curve.epoch, value=span, threshold=threshold)
        return Stop(reason) if span <= threshold else Continue(reason)

    def next_epoch(self, index: Curves, trial: TrialView) -> int:
        """Return when the window can be full for the first time, then the next epoch."""
        curve = index.curves.get(trial.number)
        return trial.epoch + max(1, self.window + 1 - (curve.count if curve is not None else 0))
