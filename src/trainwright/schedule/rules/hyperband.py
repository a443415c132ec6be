"""Halving in brackets: SuccessiveHalving, and Hyperband, which begins at several first rungs against curves that cross.

Jamieson and Talwalkar, AISTATS 2016; Li et al., JMLR 18 (2018).
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import Annotated

from trainwright.errors import ScheduleError
from trainwright.randomness import rng
from trainwright.schedule.rules.promotion_rule import CONTINUE, Event, Opened, Promote, RuleView, TrialView, Verdict
from trainwright.schedule.rules.rung_rule import AsynchronousRule, RungRule, ladder
from trainwright.schedule.rungs.brackets import Brackets
from trainwright.schedule.rungs.rungs import RankRung, Rungs, RungTable
from trainwright.validators import flag, integer, number, optional

__all__ = ["Hyperband", "SuccessiveHalving"]

_STRAGGLERS = optional(number(above=0), words="None to wait for all")


@dataclass(slots=True)
class _Drawn:
    """Several ladders side by side; a trial's is drawn from the study's seed and its number."""

    brackets: tuple[Rungs, ...]
    weights: tuple[int, ...]
    seed: int = 0
    homes: dict[int, int] = field(default_factory=dict)

    def bracket(self, trial: int) -> int:
        """Return the bracket of a trial."""
        if trial in self.homes:
            return self.homes[trial]
        # Drawn from seed and number, every worker knows the bracket without asking.
        place = int(rng(self.seed, "bracket", trial).integers(sum(self.weights)))
        return bisect_right(list(accumulate(self.weights)), place)

    def fold(self, event: Event) -> None:
        """Hand the event to the trial's bracket."""
        if isinstance(event, Opened):
            self.seed = event.seed
        else:
            home = self.homes.setdefault(event.trial, self.bracket(event.trial))
            self.brackets[home].fold(event)

    def verdict(self, trial: TrialView) -> Verdict:
        """Return that of the trial's bracket."""
        home = self.homes.get(trial.number)
        return CONTINUE if home is None else self.brackets[home].verdict(trial)

    def answer(self, view: RuleView) -> Promote | None:
        """Return the promotion that leads farthest."""
        found = [answer for rungs in self.brackets if (answer := rungs.answer(view)) is not None]
        return max(found, key=lambda answer: answer.until_epoch, default=None)

    def next_epoch(self, trial: TrialView) -> int:
        """Return the next rung of the trial's bracket."""
        return self.brackets[self.bracket(trial.number)].next_epoch(trial)

    def later(self, trial: TrialView) -> int:
        """Return how many rungs of its bracket are still before the trial."""
        return self.brackets[self.bracket(trial.number)].later(trial)


@dataclass(frozen=True, kw_only=True, slots=True)
class SuccessiveHalving(RungRule):
    """Brackets of `n` trials, by number. Each pauses at its rung until all have come or failed for good.

    Then the best floor(members/eta), at least one, go on. A bracket that the budget does not fill closes with those
    that it has. With `straggler_seconds` a rung in which so long nothing happened closes without those that are
    missing; they stop at their next report. O(log n) per event and O(n log n) where a rung closes.
    """

    n: Annotated[int, integer(minimum=1, of="trials")]
    straggler_seconds: Annotated[float | None, _STRAGGLERS] = None

    @property
    def promotes(self) -> bool:
        """Trials pause at each rung."""
        return True

    def empty(self) -> Brackets:
        """Return an index without trials."""
        return Brackets(
            "SuccessiveHalving", (self.rungs,), (self.n,), self._factor, self.max_epochs, self.straggler_seconds
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Hyperband(AsynchronousRule):
    """Bracket b compares first at min_epochs * eta^b, and the more there, the fewer trials it has.

    Its weight is ceil((B+1) / (B-b+1) * eta^(B-b)) with B the last whose first rung is at most `max_epochs`.
    Asynchronous: a trial's bracket is drawn with these weights, and each is an ASHA of the given `kind`, with rungs of
    its own. Otherwise: brackets of that many trials in turn, each a `SuccessiveHalving`. O(log n + brackets) per event.
    """

    asynchronous: Annotated[bool, flag()] = True
    straggler_seconds: Annotated[float | None, _STRAGGLERS] = None

    def check_together(self) -> None:
        """Refuse settings of synchronous brackets for asynchronous ones, and the other way round."""
        AsynchronousRule.check_together(self)
        if self.asynchronous and self.straggler_seconds is not None:
            raise ScheduleError(
                f"Hyperband.straggler_seconds: got {self.straggler_seconds!r} with asynchronous=True; allowed: None, "
                "for nobody waits there, or asynchronous=False"
            )
        if not self.asynchronous and self.kind != "stopping":
            raise ScheduleError(
                f"Hyperband.kind: got {self.kind!r} with asynchronous=False, where trials always pause; "
                "leave it out, or asynchronous=True"
            )

    @property
    def brackets(self) -> tuple[tuple[int, ...], ...]:
        """The rungs of each bracket; the last has none if its first would be the full length."""
        # One more than the length, so that the last bracket may train everybody to the end.
        firsts = ladder(self.min_epochs, self.max_epochs + 1, self._factor)
        return tuple(ladder(first, self.max_epochs, self._factor) for first in firsts)

    @property
    def weights(self) -> tuple[int, ...]:
        """How many trials each bracket has, in proportion."""
        # As many trials as give each bracket about the same number of epochs.
        count, eta = len(self.brackets), self._factor
        return tuple(math.ceil(Fraction(count, count - b) * eta ** (count - 1 - b)) for b in range(count))

    @property
    def promotes(self) -> bool:
        """Brackets in turn pause, and those of kind "promotion"."""
        return not self.asynchronous or self.kind == "promotion"

    def empty(self) -> "_Drawn | Brackets":
        """Return empty brackets."""
        eta, pausing = self._factor, self.kind == "promotion"
        if not self.asynchronous:
            return Brackets("Hyperband", self.brackets, self.weights, eta, self.max_epochs, self.straggler_seconds)
        sides = []
        for rungs in self.brackets:
            tables: dict[int, RungTable] = {rung: RankRung(eta, least=0 if pausing else 1) for rung in rungs}
            sides.append(Rungs("Hyperband", tables, self.max_epochs, pausing))
        return _Drawn(tuple(sides), self.weights)
