"""Plateau: stop a trial whose curve has become flat."""

import math
from collections import deque
from dataclasses import dataclass, field

from trainwright.errors import ScheduleError
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

__all__ = ["Plateau"]


@dataclass(slots=True)
class _Curve:
    epoch: int = 0
    count: int = 0
    least: float = math.inf  # of the finite losses
    greatest: float = -math.inf
    latest: deque[float] = field(default_factory=deque)
    verdict: Verdict = CONTINUE


@dataclass(frozen=True, kw_only=True, slots=True)
class Plateau(Rule):
    """Stop iff the last `window` losses span at most `tolerance` times what the whole curve spans; O(window).

    Judged once a curve has more than `window` points; infinite losses have no span, so a window with one goes on.
    """

    window: int = 5
    tolerance: float = 0.01
    max_epochs: int | None = None

    def __post_init__(self) -> None:
        if self.max_epochs is not None:
            check_epochs("Plateau", [("max_epochs", self.max_epochs)])
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 2:
            raise ScheduleError(f"Plateau.window: got {self.window!r}; allowed: a whole number of reports >= 2")
        number = isinstance(self.tolerance, int | float) and not isinstance(self.tolerance, bool)
        if not number or not 0 <= self.tolerance < 1:
            raise ScheduleError(f"Plateau.tolerance: got {self.tolerance!r}; allowed: a number from 0 to below 1")

    def empty(self) -> dict[int, _Curve]:
        """Return an index without curves."""
        return {}

    def fold(self, index: dict[int, _Curve], event: Event) -> dict[int, _Curve]:
        """Compare the span of the window with that of the curve."""
        if not isinstance(event, Reported):
            return index
        curve = index.setdefault(event.trial, _Curve())
        if event.epoch <= curve.epoch:
            return index
        loss = event.losses[0]
        curve.epoch, curve.count = event.epoch, curve.count + 1
        curve.latest.append(loss)
        if len(curve.latest) > self.window:
            curve.latest.popleft()
        if math.isfinite(loss):
            curve.least, curve.greatest = min(curve.least, loss), max(curve.greatest, loss)
        curve.verdict = self._judge(curve)
        return index

    def _judge(self, curve: _Curve) -> Verdict:
        greatest = max(curve.latest)
        if curve.count <= self.window or math.isinf(greatest):
            return CONTINUE
        span, threshold = greatest - min(curve.latest), self.tolerance * (curve.greatest - curve.least)
        reason = Reason(rule="Plateau", epoch=curve.epoch, value=span, threshold=threshold)
        return Stop(reason) if span <= threshold else Continue(reason)

    def on_report(self, index: dict[int, _Curve], view: View, trial: TrialView) -> Verdict:  # noqa: ARG002 -- protocol
        """Return the verdict of the trial's latest report."""
        curve = index.get(trial.number)
        return curve.verdict if curve is not None else CONTINUE

    def next_epoch(self, index: dict[int, _Curve], trial: TrialView) -> int:
        """Return when the window can be full for the first time, then the next epoch."""
        curve = index.get(trial.number)
        return trial.epoch + max(1, self.window + 1 - (curve.count if curve is not None else 0))
