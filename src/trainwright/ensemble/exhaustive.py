"""More search than greedy: every multiset of members on a small library, and a beam of the best ones on any."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trainwright.ensemble.candidates import Candidates, Picks, Scorer
from trainwright.ensemble.greedy import BudgetedGreedy, columns_of
from trainwright.ensemble.limited import Limited
from trainwright.errors import EnsembleError

__all__ = ["Beam", "Exact"]

_MOST = 200_000  # multisets


@dataclass(frozen=True, kw_only=True, slots=True)
class Exact(Limited):
    """Every multiset of at most `settings.max_additions` picks that keeps the limits of `settings`: the true optimum.

    Of L members there are sum over k of (L + k - 1 choose k) multisets: 8,007 for 10 members and 6 picks; more than
    200,000 are refused.
    """

    settings: BudgetedGreedy = field(default_factory=lambda: BudgetedGreedy(max_additions=5))

    def best(self, candidates: Candidates, scorer: Scorer) -> Picks:
        """Return the picks of least objective; of equals those with fewer picks, then of lower trial numbers."""
        return _best(self.settings, candidates, scorer, list(self.pool(candidates, scorer)))

    def pool(self, candidates: Candidates, scorer: Scorer) -> Iterator[tuple[Picks, float]]:
        """Yield every multiset within the limits, and its loss."""
        self.settings.check(candidates)
        count = sum(math.comb(len(candidates) + k - 1, k) for k in range(1, self.settings.max_additions + 1))
        if count > _MOST:
            raise EnsembleError(
                f"Exact: got {len(candidates)} members and up to {self.settings.max_additions} picks, {count:,} "
                f"multisets; allowed: {_MOST:,}; lower max_additions, or use Beam"
            )
        layer: list[Picks] = [()]
        for _ in range(self.settings.max_additions):
            layer = [(*picks, more) for picks in layer for more in range(picks[-1] if picks else 0, len(candidates))]
            # A multiset that breaks a limit is left out with all that contain it: costs never fall.
            layer = [picks for picks in layer if self.settings.admits(candidates, picks)]
            yield from ((picks, scorer.loss(picks)) for picks in layer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Beam(Limited):
    """The `width` best multisets of each size, each extended by every member; the greedy run is always among them."""

    width: int = 8

    def __post_init__(self) -> None:
        if self.width < 1:
            raise EnsembleError(f"Beam.width: got {self.width!r}; allowed: an integer >= 1")

    def best(self, candidates: Candidates, scorer: Scorer) -> Picks:
        """Return the picks of least objective; of equals those with fewer picks, then of lower trial numbers."""
        return _best(self.settings, candidates, scorer, list(self._searched(candidates, scorer)))

    def pool(self, candidates: Candidates, scorer: Scorer) -> Iterator[tuple[Picks, float]]:
        """Yield what greedy runs give, and every multiset that was in the beam."""
        yield from self.settings.pool(candidates, scorer)
        yield from self._searched(candidates, scorer)

    def _searched(self, candidates: Candidates, scorer: Scorer) -> Iterator[tuple[Picks, float]]:
        steps = self.settings.run(candidates, scorer).steps
        path = [tuple(step.index for step in steps[: length + 1]) for length in range(len(steps))]
        every = np.arange(len(candidates))
        layer: list[Picks] = [()]
        for greedy in path:
            found: dict[tuple[int, ...], Picks] = {tuple(sorted(greedy)): greedy}
            for picks in layer:
                open_ = [one for one in every.tolist() if self._may(candidates, picks, one)]
                scorer.losses(picks, np.array(open_, dtype=np.intp))  # at once, then from memory
                for one in open_:
                    found.setdefault(tuple(sorted((*picks, one))), (*picks, one))
            ranked = _ranked(self.settings, candidates, scorer, list(found.values()))
            layer = ranked[: self.width]
            if greedy not in layer:
                layer = [*layer[: self.width - 1], greedy]
            yield from ((picks, scorer.loss(picks)) for picks in layer)

    def _may(self, candidates: Candidates, picks: Picks, one: int) -> bool:
        if not self.settings.replacement and one in picks:
            return False
        return self.settings.admits(candidates, (*picks, one))


def _best(settings: BudgetedGreedy, candidates: Candidates, scorer: Scorer, pool: list[tuple[Picks, float]]) -> Picks:
    return _ranked(settings, candidates, scorer, [picks for picks, _ in pool])[0]


def _ranked(settings: BudgetedGreedy, candidates: Candidates, scorer: Scorer, pool: list[Picks]) -> list[Picks]:
    seconds, sizes = columns_of(candidates)
    objective_of = settings.objective(candidates, scorer)

    def key(picks: Picks) -> tuple[float, int, list[int]]:
        members = sorted(Counter(picks))
        cost, size = seconds[members].sum(), sizes[members].sum()
        objective = float(objective_of(np.array(scorer.loss(picks)), cost, size))
        return round(objective, 12), len(picks), sorted(int(candidates.trials[one]) for one in picks)

    return sorted(pool, key=key)
