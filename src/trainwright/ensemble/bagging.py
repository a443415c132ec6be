"""Bagged greedy selection: one run on each of many random halves of the library, and one more among those picked.

Caruana et al. (ICML 2004) bag so that members do not enter by luck. The union of the bags may break budgets and
`max_members`, which is why the result is one more greedy run, restricted to the union.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainwright.ensemble.candidates import Candidates, Indices, Picks, Scorer
from trainwright.ensemble.greedy import BudgetedGreedy, columns_of
from trainwright.ensemble.limited import Limited
from trainwright.errors import EnsembleError
from trainwright.randomness import rng

__all__ = ["Bagged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bagged(Limited):
    """Greedy selection among the members that at least two of `bags` runs picked, each on a part of the library."""

    bags: int = 20
    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bags < 1:
            raise EnsembleError(f"Bagged.bags: got {self.bags!r}; allowed: an integer >= 1")
        if not 0.0 < self.fraction <= 1.0:
            raise EnsembleError(f"Bagged.fraction: got {self.fraction!r}; allowed: a number in (0, 1]")

    def best(self, candidates: Candidates, scorer: Scorer) -> Picks:
        """Return the picks of the run among those that bags picked."""
        return self.settings.run(candidates, scorer, among=self._union(candidates, scorer)).picks

    def pool(self, candidates: Candidates, scorer: Scorer) -> Iterator[tuple[Picks, float]]:
        """Yield every prefix of the run among those that bags picked, and what greedy runs give."""
        steps = self.settings.run(candidates, scorer, among=self._union(candidates, scorer)).steps
        picks = tuple(step.index for step in steps)
        yield from ((picks[: length + 1], step.loss) for length, step in enumerate(steps))
        yield from self.settings.pool(candidates, scorer)

    def _union(self, candidates: Candidates, scorer: Scorer) -> Indices:
        self.settings.check(candidates)
        count = max(1, round(self.fraction * len(candidates)))
        order = np.argsort(candidates.trials)  # a bag is a set of trials, however the library is sorted
        times: Counter[int] = Counter()
        for bag in range(self.bags):
            drawn = order[rng(self.seed, "bags of members", bag).permutation(len(candidates))[:count]]
            if _affords(self.settings, candidates, drawn):
                times.update(set(self.settings.run(candidates, scorer, among=drawn).picks))
        often = [one for one, amount in times.items() if amount >= min(2, self.bags)]
        return np.array(sorted(often or times or range(len(candidates))), dtype=np.intp)


def _affords(settings: BudgetedGreedy, candidates: Candidates, drawn: Indices) -> bool:
    seconds, sizes = columns_of(candidates)
    return any(
        (settings.budget_seconds is None or seconds[one] <= settings.budget_seconds)
        and (settings.budget_bytes is None or sizes[one] <= settings.budget_bytes)
        for one in drawn
    )
