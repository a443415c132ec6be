"""Successive halving: ASHA, SuccessiveHalving in brackets, and Hyperband, whose brackets begin at several first rungs.

Jamieson and Talwalkar, AISTATS 2016; Li et al., arXiv 1810.05934, which stops trials at rungs or pauses them; Li et
al., JMLR 18 (2018).
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Literal

from trainwright.errors import ScheduleError
from trainwright.randomness import rng
from trainwright.schedule.rules.promotion_rule import Event, Opened
from trainwright.schedule.rules.rung_rule import FIRST, AsynchronousRule, RungRule, rung_ladder
from trainwright.schedule.rungs.brackets import Brackets
from trainwright.schedule.rungs.rungs import AdaptiveRung, QuantileRung, Rungs, RungTable
from trainwright.validators import integer, one_of

__all__ = ["ASHA", "Hyperband", "SuccessiveHalving"]


@lru_cache(65536)
def _draw_bracket(seed: int, trial: int, weights: tuple[int, ...]) -> int:
    """Return the bracket of a trial: drawn from seed and number, so that every worker knows it without asking."""
    place = int(rng(seed, "bracket", trial).integers(sum(weights)))
    return bisect_right(list(accumulate(weights)), place)


@dataclass(slots=True)
class _Drawn(Rungs):
    """Several ladders side by side; a trial's is drawn from the study's seed and its number."""

    brackets: tuple[dict[int, RungTable], ...] = ()
    weights: tuple[int, ...] = ()
    seed: int = 0

    def fold(self, event: Event) -> tuple[int, ...]:
        """Take an event; the first one tells the seed."""
        if isinstance(event, Opened):
            self.seed = event.seed
        return Rungs.fold(self, event)

    def ladders(self) -> tuple[dict[int, RungTable], ...]:
        """Return the brackets."""
        return self.brackets

    def ladder_of(self, trial: int) -> dict[int, RungTable]:
        """Return the rungs of the trial's bracket."""
        return self.brackets[_draw_bracket(self.seed, trial, self.weights)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ASHA(AsynchronousRule):
    """Asynchronous successive halving: at each rung only the best 1/eta that reached it continue. O(log n) per event.

    Rungs are ceil(min_epochs * eta^k) < `max_epochs`, in epochs; without `min_epochs` there are three at most. A report
    reaches every rung up to its epoch that the trial has not reached yet; all are recorded with its loss and the
    highest is judged.

    `kind="stopping"`: with `cutoff="rank"` a trial goes on iff its rank is at most max(1, floor(n/eta)), itself counted
    in n; with "quantile" iff its loss is at most the linearly interpolated 1/eta quantile of those recorded before it
    (the first always goes on). The others stop; nobody pauses. "adaptive" is "rank" with a share of its own for each
    rung: half more than the range of ranks from which the best third of the next rung came, at least 1/eta. On curves
    whose early epochs foretell little it is as if eta were smaller.

    `kind="promotion"`: a trial goes on iff its rank is at most floor(n/eta); the others pause. Free devices go to the
    best paused trial that has come to be among the best floor(n/eta), from the highest rung down, else to a new trial.
    """

    cutoff: Annotated[Literal["rank", "quantile", "adaptive"], one_of("rank", "quantile", "adaptive")] = "rank"

    def check_together(self) -> None:
        """Refuse a ladder without a first rung, and a quantile by which trials would be paused."""
        AsynchronousRule.check_together(self)
        if self.cutoff == "quantile" and self.kind == "promotion":
            raise ScheduleError(
                "ASHA.cutoff: got 'quantile' with kind='promotion'; allowed: 'rank', 'adaptive', or kind='stopping'"
            )

    def make_table(self) -> RungTable:
        """Return an empty rung, which compares by rank or by quantile."""
        if self.cutoff == "adaptive":
            return AdaptiveRung(self._factor, least=0 if self.promotes else 1)
        return QuantileRung(self._factor) if self.cutoff == "quantile" else AsynchronousRule.make_table(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SuccessiveHalving(RungRule):
    """Synchronous: brackets of `n` trials, by number; each pauses at its rung until all have come or failed for good.

    Then the best floor(members/eta), at least one, go on. A bracket that the budget does not fill closes with those
    that it has. O(log n) per event and O(n log n) where a rung closes.
    """

    n: Annotated[int, integer(minimum=1, of="trials")]

    @property
    def promotes(self) -> bool:
        """Trials pause at each rung."""
        return True

    def empty(self) -> Brackets:
        """Return an index without trials."""
        return Brackets("SuccessiveHalving", self.rungs, self.n, self._factor, self.max_epochs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hyperband(AsynchronousRule):
    """Brackets of ASHA: bracket b compares first at min_epochs * eta^b; later brackets have fewer trials.

    Its weight is ceil((B+1) / (B-b+1) * eta^(B-b)) with B the last whose first rung is at most `max_epochs`. A trial's
    bracket is drawn with these weights, and each is an ASHA of the given `kind`, with rungs of its own. O(log n +
    brackets) per event.
    """

    min_epochs: Annotated[int | None, FIRST] = 1  # its brackets begin later by themselves

    @property
    def brackets(self) -> tuple[tuple[int, ...], ...]:
        """The rungs of each bracket; the last has none if its first would be the full length."""
        # One more than the length, so that the last bracket may train everybody to the end.
        firsts = rung_ladder(self.first_rung, self.max_epochs + 1, self._factor)
        return tuple(rung_ladder(first, self.max_epochs, self._factor) for first in firsts)

    @property
    def weights(self) -> tuple[int, ...]:
        """How many trials each bracket has, in proportion."""
        # As many trials as give each bracket about the same number of epochs.
        count, eta = len(self.brackets), self._factor
        return tuple(math.ceil(Fraction(count, count - b) * eta ** (count - 1 - b)) for b in range(count))

    def empty(self) -> Rungs:
        """Return empty brackets."""
        ladders = tuple({rung: self.make_table() for rung in rungs} for rungs in self.brackets)
        return _Drawn("Hyperband", {}, self.max_epochs, self.promotes, brackets=ladders, weights=self.weights)
