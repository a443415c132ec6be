"""Plateau: stop a trial whose curve has become flat."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from trainwright.schedule.rules.curve_rule import Curve, CurveRule, Curves
from trainwright.schedule.rules.promotion_rule import CONTINUE, Continue, Reason, Stop, TrialView, Verdict
from trainwright.validators import integer, number, optional

__all__ = ["Plateau"]


@dataclass(slots=True)
class _Curve(Curve):
    count: int = 0
    least: float = math.inf  # of the finite losses
    greatest: float = -math.inf
    latest: deque[float] = field(default_factory=deque)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plateau(CurveRule):
    """Stop iff the last `window` losses span at most `tolerance` times what the whole curve spans; O(window).

    Judged once a curve has more than `window` points; infinite losses have no span, so a window with one goes on.
    """

    curve: ClassVar = _Curve

    window: Annotated[int, integer(minimum=2, of="reports")] = 5
    tolerance: Annotated[float, number(minimum=0, below=1)] = 0.01
    max_epochs: Annotated[int | None, optional(integer(minimum=1, of="epochs"))] = None

    def judge(self, index: Curves, curve: _Curve, loss: float) -> Verdict:  # noqa: ARG002 -- trials are on their own
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
