"""Random search: independent draws from the space's priors, the yardstick of every comparison."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.search.searcher import draw_new, opening, propose
from trainwright.search.view import SearchView
from trainwright.space.configuration import Configuration

__all__ = ["RandomSearcher"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomSearcher:
    """Draw each configuration from the space by trial number, none twice (Bergstra and Bengio, JMLR 2012)."""

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new random configuration per number; O(1) in the length of the study."""
        taken: set[bytes] = set()
        proposals = []
        for number in numbers:
            proposal = opening(view, number, taken, searcher="random")
            if proposal is None:
                proposal = propose(view, draw_new(view, number, taken, "random"), number, searcher="random")
            proposals.append(proposal)
        return proposals
