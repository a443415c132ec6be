"""The base of all rules of successive halving: makes the rung ladder, judges trials at rungs, and promotes the best."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.promotion_rule import (
    WAIT,
    Continue,
    Event,
    New,
    Pause,
    Promote,
    PromotionRule,
    RuleView,
    TrialView,
    Verdict,
    Wait,
)
from trainwright.schedule.rungs.brackets import Brackets
from trainwright.schedule.rungs.rungs import RankRung, Rungs, RungTable
from trainwright.settings import Settings
from trainwright.validators import Validator, integer, number, one_of, optional

__all__ = ["FIRST", "AsynchronousRule", "RungIndex", "RungRule", "as_fraction", "rung_ladder"]

RungIndex = Rungs | Brackets
FIRST = optional(integer(minimum=1, of="epochs"), words="None for three rungs")
_RUNGS = 3  # below the full length, unless the first is given


def as_fraction(eta: float | Fraction) -> Fraction:
    """Return the reduction factor as an exact fraction (2.5 is 5/2)."""
    return Fraction(eta).limit_denominator(1000)


def rung_ladder(min_epochs: int, max_epochs: int, eta: Fraction) -> tuple[int, ...]:
    """Return the rungs ceil(min_epochs * eta^k) below `max_epochs`, strictly increasing.

    Never by logarithms: floor(log(243/3)/log(3)) is 3 in floating point, one rung short.
    """
    rungs: list[int] = []
    exact = Fraction(min_epochs)
    # Rungs are rounded up from the exact power, and equal ones are left out.
    while (rung := math.ceil(exact)) < max_epochs:
        if not rungs or rung > rungs[-1]:
            rungs.append(rung)
        exact *= eta
    return tuple(rungs)


_ABOVE_1 = number(above=1)
# A factor that is 1 as a fraction of a small denominator would give a ladder without an end.
_ETA = Validator(lambda value: _ABOVE_1.accepts(value) and as_fraction(value) > 1, "a number > 1, usually 2, 3 or 4")


@dataclass(frozen=True, kw_only=True, slots=True)
class RungRule(PromotionRule, Settings, error=ScheduleError):
    """Compares trials at rungs: ceil(min_epochs * eta^k) < `max_epochs`, in epochs. Subclasses give `empty`.

    Without `min_epochs` there are at most three rungs: it is max_epochs / eta^3, rounded up. On recorded curves the
    very first epochs of a long training foretell nothing (`benchmarks/fidelity/run.py`).
    """

    max_epochs: Annotated[int, integer(minimum=1, of="epochs")]
    min_epochs: Annotated[int | None, FIRST] = None
    eta: Annotated[float | Fraction, _ETA] = 3

    def check_together(self) -> None:
        """Refuse a first rung above the last epoch."""
        if self.first_rung > self.max_epochs:
            raise ScheduleError(
                f"{type(self).__name__}.min_epochs: got {self.min_epochs}, above max_epochs {self.max_epochs}; "
                "allowed: 1 to max_epochs"
            )

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are compared."""
        return rung_ladder(self.first_rung, self.max_epochs, self._factor)

    @property
    def first_rung(self) -> int:
        """The epochs at which trials are first compared."""
        return math.ceil(self.max_epochs / self._factor**_RUNGS) if self.min_epochs is None else self.min_epochs

    @property
    def reads_curves(self) -> bool:
        """Only what is reported at rungs counts."""
        return False

    @property
    def _factor(self) -> Fraction:
        return as_fraction(self.eta)

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
        return next((rung for rung in index.ladder_of(trial.number) if rung > trial.epoch), self.max_epochs)

    def survival(self, index: RungIndex, view: RuleView, trial: TrialView) -> tuple[float, ...]:  # noqa: ARG002 -- likewise
        """Return the chance to pass one rung, two rungs and so on, for each rung that is still before the trial."""
        later = sum(rung > trial.epoch for rung in index.ladder_of(trial.number))
        return tuple(float(self._factor) ** -count for count in range(1, later + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class AsynchronousRule(RungRule):
    """A rule that waits for no rung to fill: trials outside the best stop, or pause until they are among them."""

    kind: Annotated[Literal["stopping", "promotion"], one_of("stopping", "promotion")] = "stopping"

    @property
    def promotes(self) -> bool:
        """Of kind "promotion" it pauses."""
        return self.kind == "promotion"

    def make_table(self) -> RungTable:
        """Return an empty rung: the best 1/eta of the trials there go on, where trials stop at least one."""
        return RankRung(self._factor, least=0 if self.promotes else 1)

    def empty(self) -> Rungs:
        """Return empty rungs."""
        tables = {rung: self.make_table() for rung in self.rungs}
        return Rungs(type(self).__name__, tables, self.max_epochs, self.promotes)

    def on_report(self, index: RungIndex, view: RuleView, trial: TrialView) -> Verdict:
        """Before a deadline the best that has come to a rung goes on, however few have."""
        verdict = RungRule.on_report(self, index, view, trial)
        if view.final and isinstance(verdict, Pause) and isinstance(index, Rungs) and index.leads(trial.number):
            return Continue(verdict.reason)
        return verdict
