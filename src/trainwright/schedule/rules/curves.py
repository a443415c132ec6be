"""What rules share that judge a trial at each report and keep the verdict beside its curve."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.promotion_rule import CONTINUE, BaseRule, Event, Reported, RuleView, TrialView, Verdict
from trainwright.settings import Settings

__all__ = ["Curve", "CurveRule", "Curves"]


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


class CurveRule(BaseRule, Settings, error=ScheduleError):
    """Subclasses say of what classes index and curves are, and judge a new report."""

    index: ClassVar[type[Curves]] = Curves
    curve: ClassVar[type[Curve]]

    def judge(self, index: Any, curve: Any, loss: float) -> Verdict:
        """Take the loss at `curve.epoch` into the curve and return the verdict."""
        raise NotImplementedError

    def empty(self) -> Curves:
        """Return an index without curves."""
        return self.index()

    def fold(self, index: Curves, event: Event) -> Curves:
        """Judge a report, unless it is an old one."""
        if isinstance(event, Reported):
            curve = index.curves.setdefault(event.trial, self.curve(event.trial))
            if event.epoch > curve.epoch:
                curve.epoch = event.epoch
                curve.verdict = self.judge(index, curve, event.losses[0])
        return index

    def on_report(self, index: Curves, view: RuleView, trial: TrialView) -> Verdict:  # noqa: ARG002 -- the protocol's
        """Return the verdict of the trial's latest report."""
        curve = index.curves.get(trial.number)
        return curve.verdict if curve is not None else CONTINUE
