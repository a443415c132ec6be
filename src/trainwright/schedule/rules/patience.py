"""Patience: stop a trial whose best loss falls no more."""

from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.curve_rule import Curve, CurveRule, Curves
from trainwright.schedule.rules.promotion_rule import CONTINUE, Continue, Reason, Stop, TrialView, Verdict
from trainwright.validators import integer, number, optional

__all__ = ["Patience"]


@dataclass(slots=True)
class _Curve(Curve):
    best: deque[tuple[int, float]] = field(default_factory=deque)  # when it fell, and to what; from the window's start


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience(CurveRule):
    """Stop iff the best loss has not fallen by more than `min_delta` during the last `epochs`; amortised O(1).

    `epochs` left out is a quarter of `max_epochs`, rounded up. A trial without reports so long ago goes on.
    """

    curve: ClassVar = _Curve

    epochs: Annotated[int | None, optional(integer(minimum=1, of="epochs"))] = None
    min_delta: Annotated[float, number(minimum=0)] = 0.0
    max_epochs: Annotated[int | None, optional(integer(minimum=1, of="epochs"))] = None

    def check_together(self) -> None:
        """Refuse a rule of which neither the window nor the length is known."""
        if self.epochs is None and self.max_epochs is None:
            raise ScheduleError("Patience.epochs: got None; allowed: a whole number of epochs >= 1, or give max_epochs")

    @property
    def window(self) -> int:
        """After how many epochs without progress a trial stops."""
        return self.epochs if self.epochs is not None else -(-(self.max_epochs or 1) // 4)

    def judge(self, index: Curves, curve: _Curve, loss: float) -> Verdict:  # noqa: ARG002 -- trials are on their own
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
        stays = now >= threshold  # with min_delta=0 an equal loss is no progress
        return Stop(reason) if stays else Continue(reason)

    def next_epoch(self, index: Curves, trial: TrialView) -> int:
        """Return the end of the window that began with the last progress before it."""
        curve = index.curves.get(trial.number)
        return max(trial.epoch + 1, 1 + self.window if curve is None else curve.best[0][0] + self.window)
