"""What strategies that hold the settings of a greedy run have in common: its limits are theirs."""

from dataclasses import dataclass, field, replace
from typing import Self

from trainwright.ensemble.candidates import Candidates, Picks
from trainwright.ensemble.greedy import BudgetedGreedy

__all__ = ["Limited"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limited:
    """A strategy that keeps the budgets and `max_members` of its `settings`."""

    settings: BudgetedGreedy = field(default_factory=BudgetedGreedy)

    @property
    def max_members(self) -> int:
        """Most different members of a result."""
        return self.settings.max_members

    def admits(self, candidates: Candidates, picks: Picks) -> bool:
        """Say whether picks keep the limits of `settings`."""
        return self.settings.admits(candidates, picks)

    def within(self, max_members: int, seconds: float | None, sizes: float | None) -> Self:
        """Return the same with limits at least as tight as those given, and without prices."""
        return replace(self, settings=self.settings.within(max_members, seconds, sizes))
