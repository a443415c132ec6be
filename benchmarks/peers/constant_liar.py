"""The constant liar (Ginsbourger et al., 2010) over the forest: pending trials count as completed, with the best loss.

The reference for how pending trials are treated. It fits a new forest for each proposal, which is slow.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import trainwright as tw
from trainwright.search import SearchView

__all__ = ["ConstantLiar"]


@dataclass(frozen=True)
class ConstantLiar:
    """Ask the forest one proposal at a time, on a copy of the study in which nothing is pending."""

    forest: tw.ForestSearcher = field(default_factory=tw.ForestSearcher)

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[tw.Configuration]:
        """Return one new configuration per number."""
        completed = view.losses[view.complete & ~view.failed]
        if not len(completed):
            return self.forest.ask(view, numbers)
        lie = completed.min(axis=0).tolist()
        view.settle()
        memo, view.memo = view.memo, {}  # the forests of the study itself need not be copied
        supposed = copy.deepcopy(view)
        view.memo = memo
        for number in list(supposed._pending):  # noqa: SLF001 -- only a benchmark supposes results
            supposed.result(number, lie, epoch=None, complete=True)
        proposals = []
        for number in numbers:
            proposals += self.forest.ask(supposed, [number])
            supposed.propose(number, proposals[-1])
            supposed.result(number, lie, epoch=None, complete=True)
        return proposals
