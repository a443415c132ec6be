"""What all rules of successive halving share: an index that folds, judges and promotes, and the questions to it."""

from fractions import Fraction
from typing import Protocol

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.promotion_rule import (
    WAIT,
    BaseRule,
    Event,
    New,
    Promote,
    RuleView,
    TrialView,
    Verdict,
    Wait,
)
from trainwright.schedule.rungs.ladder import as_fraction, check_ladder, ladder
from trainwright.settings import Settings

__all__ = ["RungIndex", "RungRule"]


class RungIndex(Protocol):
    """What such a rule remembers, and answers from."""

    def fold(self, event: Event) -> object:
        """Take an event."""

    def verdict(self, trial: TrialView) -> Verdict:
        """Judge a trial by its latest report."""

    def answer(self, view: RuleView) -> Promote | Wait | None:
        """Return a promotion, or until when to wait for one; None if there is nothing to wait for."""

    def next_epoch(self, trial: TrialView) -> int:
        """Return the next epoch whose report can change a verdict."""

    def later(self, trial: TrialView) -> int:
        """Return how many rungs are still before the trial."""


class RungRule(BaseRule, Settings, error=ScheduleError):
    """Subclasses have the fields `max_epochs`, `min_epochs` and `eta`, and give `empty`."""

    max_epochs: int
    min_epochs: int
    eta: float | Fraction

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are compared."""
        return ladder(self.min_epochs, self.max_epochs, self._factor)

    @property
    def reads_curves(self) -> bool:
        """Only what is reported at rungs counts."""
        return False

    @property
    def _factor(self) -> Fraction:
        return as_fraction(self.eta)

    def check_together(self) -> None:
        """Refuse a first rung above the last epoch."""
        check_ladder(type(self).__name__, self.min_epochs, self.max_epochs)

    def fold(self, index: RungIndex, event: Event) -> RungIndex:
        """Record a report at every rung newly reached, and the verdict at the highest."""
        index.fold(event)
        return index

    def on_report(self, index: RungIndex, view: RuleView, trial: TrialView) -> Verdict:  # noqa: ARG002 -- the protocol's
        """Return the verdict of the rung that this report reached; between rungs the trial goes on."""
        return index.verdict(trial)

    def on_free(self, index: RungIndex, view: RuleView) -> Promote | New | Wait:
        """Promote the best trial of the highest rung where one may go on, else start a new one."""
        answer = index.answer(view)
        if isinstance(answer, Promote):
            return answer
        return New() if view.remaining > 0 else answer or WAIT

    def next_epoch(self, index: RungIndex, trial: TrialView) -> int:
        """Return the next rung."""
        return index.next_epoch(trial)

    def survival(self, index: RungIndex, view: RuleView, trial: TrialView) -> tuple[float, ...]:  # noqa: ARG002 -- likewise
        """Return eta^-k for the k-th later rung."""
        return tuple(float(self._factor) ** -k for k in range(1, index.later(trial) + 1))
