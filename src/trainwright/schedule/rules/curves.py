"""Early stopping by a trial's learning curve: the median stopping rule (Vizier, KDD 2017), Patience and Plateau."""

import math
from abc import ABC, abstractmethod
from bisect import insort
from dataclasses import dataclass, field
from typing import Annotated

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.promotion_rule import (
    CONTINUE,
    Continue,
    Event,
    PromotionRule,
    Reason,
    Reported,
    RuleView,
    Stop,
    TrialView,
    Verdict,
)
from trainwright.schedule.rungs.rungs import interpolate_quantile
from trainwright.settings import Settings
from trainwright.validators import integer, number, optional

__all__ = ["Curve", "CurveRule", "Curves", "Median", "Patience", "Plateau"]

_EARLY = 27  # this part of a training says too little of its end
_LENGTH = optional(integer(minimum=1, of="epochs"))


@dataclass(slots=True)
class Curve:
    """A trial's losses, by epoch in their order, and the verdict on the last of them."""

    trial: int
    losses: dict[int, float] = field(default_factory=dict)
    verdict: Verdict = CONTINUE

    @property
    def epoch(self) -> int:
        """The last epoch that was reported; 0 before."""
        return next(reversed(self.losses), 0)


@dataclass(slots=True)
class Curves:
    """The index of such a rule: curves by trial, and what the rule compares them with at each epoch."""

    curves: dict[int, Curve] = field(default_factory=dict)
    epochs: dict[int, list[float]] = field(default_factory=dict)  # in ascending order


class CurveRule(PromotionRule, Settings, ABC, error=ScheduleError):
    """Subclasses judge a curve to which a report has just been added; O(curve) per report."""

    @abstractmethod
    def judge(self, index: Curves, curve: Curve) -> Verdict:
        """Return the verdict on a curve at its last epoch."""

    def empty(self) -> Curves:
        """Return an index without curves."""
        return Curves()

    def fold(self, index: Curves, event: Event) -> Curves:
        """Judge a report, unless it is an old one."""
        if isinstance(event, Reported):
            curve = index.curves.setdefault(event.trial, Curve(event.trial))
            # A repeated epoch, as after a restart, has been judged.
            if event.epoch > curve.epoch:
                curve.losses[event.epoch] = event.losses[0]
                curve.verdict = self.judge(index, curve)
        return index

    def on_report(self, index: Curves, view: RuleView, trial: TrialView) -> Verdict:  # noqa: ARG002 -- the protocol's
        """Return the verdict of the trial's latest report."""
        curve = index.curves.get(trial.number)
        return curve.verdict if curve is not None else CONTINUE


@dataclass(frozen=True, kw_only=True, slots=True)
class Median(CurveRule):
    """Median stopping: at every `interval`-th epoch from `min_epochs` on, compare with the others that reached it.

    A trial stops iff its best loss up to there is above the median of the other trials' mean losses up to there; with
    fewer than `min_trials` others it goes on. `min_epochs` left out is a 27th of `max_epochs`, rounded up, or 1: the
    very first epochs of a long training foretell nothing. O(log n) per report.
    """

    min_epochs: Annotated[int | None, _LENGTH] = None
    interval: Annotated[int, integer(minimum=1, of="epochs")] = 1
    min_trials: Annotated[int, integer(minimum=1)] = 5
    max_epochs: Annotated[int | None, _LENGTH] = None

    @property
    def first_epoch(self) -> int:
        """The first compared epoch."""
        return math.ceil((self.max_epochs or 1) / _EARLY) if self.min_epochs is None else self.min_epochs

    def judge(self, index: Curves, curve: Curve) -> Verdict:
        """Compare the trial's best loss with the running means of the others, at a compared epoch."""
        epoch, losses = curve.epoch, curve.losses.values()
        if epoch < self.first_epoch or (epoch - self.first_epoch) % self.interval:
            return curve.verdict if isinstance(curve.verdict, Stop) else CONTINUE
        others, best = index.epochs.setdefault(epoch, []), min(losses)
        verdict: Verdict = CONTINUE
        if len(others) >= self.min_trials:
            median = interpolate_quantile(others, (len(others) - 1) / 2)
            reason = Reason(rule="Median", epoch=epoch, value=best, threshold=median)
            verdict = Stop(reason) if best > median else Continue(reason)
        # Entered after the comparison: a trial is not among its own others.
        insort(others, sum(losses) / len(losses))
        return verdict

    def next_epoch(self, index: Curves, trial: TrialView) -> int:  # noqa: ARG002 -- likewise
        """Return the next compared epoch."""
        if trial.epoch < self.first_epoch:
            return self.first_epoch
        return trial.epoch + self.interval - (trial.epoch - self.first_epoch) % self.interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience(CurveRule):
    """Stop iff the best loss has not fallen by more than `min_delta` during the last `epochs`; O(curve).

    `epochs` left out is a quarter of `max_epochs`, rounded up. A trial without reports so long ago goes on.
    """

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

    def judge(self, index: Curves, curve: Curve) -> Verdict:  # noqa: ARG002 -- trials are on their own
        """Compare the best loss with what it was when the window began."""
        before = [loss for epoch, loss in curve.losses.items() if epoch <= curve.epoch - self.window]
        if not before:
            return CONTINUE
        now, threshold = min(curve.losses.values()), min(before) - self.min_delta
        reason = Reason(rule="Patience", epoch=curve.epoch, value=now, threshold=threshold)
        # With min_delta=0 an equal loss is no progress.
        return Stop(reason) if now >= threshold else Continue(reason)

    def next_epoch(self, index: Curves, trial: TrialView) -> int:
        """Return the end of the window that began with the last progress before it."""
        curve = index.curves.get(trial.number)
        best_epoch = 1
        if curve is not None:
            early = [epoch for epoch in curve.losses if epoch <= curve.epoch - self.window]
            best_epoch = min(early or list(curve.losses)[:1], key=curve.losses.__getitem__)
        return max(trial.epoch + 1, best_epoch + self.window)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plateau(CurveRule):
    """Stop iff the last `window` losses span at most `tolerance` times what the whole curve spans; O(curve).

    Judged once a curve has more than `window` points; infinite losses have no span, so a window with one goes on.
    """

    window: Annotated[int, integer(minimum=2, of="reports")] = 5
    tolerance: Annotated[float, number(minimum=0, below=1)] = 0.01
    max_epochs: Annotated[int | None, _LENGTH] = None

    def judge(self, index: Curves, curve: Curve) -> Verdict:  # noqa: ARG002 -- trials are on their own
        """Compare the span of the window with that of the curve."""
        losses = list(curve.losses.values())
        latest = losses[-self.window :]
        if len(losses) <= self.window or math.isinf(max(latest)):
            return CONTINUE
        # The span of the window relative to that of the whole curve.
        finite = [loss for loss in losses if math.isfinite(loss)]
        span, threshold = max(latest) - min(latest), self.tolerance * (max(finite) - min(finite))
        reason = Reason(rule="Plateau", epoch=curve.epoch, value=span, threshold=threshold)
        return Stop(reason) if span <= threshold else Continue(reason)

    def next_epoch(self, index: Curves, trial: TrialView) -> int:
        """Return when the window can be full for the first time, then the next epoch."""
        curve = index.curves.get(trial.number)
        return trial.epoch + max(1, self.window + 1 - (len(curve.losses) if curve is not None else 0))
