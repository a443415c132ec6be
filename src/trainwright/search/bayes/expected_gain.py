"""When to stop: nothing that a forest still hopes for is worth another trial.

Expected improvement below a tolerance as the end of a search: Huang, Allen, Notz and Zeng, Journal of Global
Optimization 34 (2006), with a Gaussian process; here with the forest that also chooses the best by estimate.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from trainwright.errors import SearchError
from trainwright.randomness import rng
from trainwright.search.bayes.candidates import Moves
from trainwright.search.bayes.improvement import expected_improvement
from trainwright.search.view import SearchView
from trainwright.settings import Settings
from trainwright.validators import integer, number, optional

__all__ = ["ExpectedGain"]

_CANDIDATES, _ROUNDS, _STARTS = 2000, 2, 5


@dataclass(frozen=True, slots=True)
class ExpectedGain(Settings, error=SearchError):
    """End a search when the greatest expected improvement that is left falls below `least`, in units of the objective.

    Asked after `results` results (default: two a column and one, at least 20) and from then on after every twentieth
    part more. The improvement is over the best estimated configuration, so luck counts nothing; a forest's estimate of
    it is rough. Bounds and constraints play no part. One objective.
    """

    least: Annotated[float, number(above=0)]
    results: Annotated[int | None, optional(integer(minimum=5))] = None

    def check(self, objectives: int) -> None:
        """Refuse a study of several objectives."""
        if objectives > 1:
            raise SearchError(f"ExpectedGain looks at one objective, the study has {objectives}; leave it out")

    def step(self, view: SearchView) -> int:
        """Return the number of results, up to now, at which the question was due last; 0 if it never was."""
        size = self.results if self.results is not None else max(20, 2 * view.space.dimension + 1)
        if view.count_results < size:
            return 0
        while (following := size + max(1, size // 20)) <= view.count_results:
            size = following
        return size

    def gain(self, view: SearchView) -> float:
        """Return the greatest expected improvement found, in units of the objective; O(rows log rows), 36 forests."""
        from trainwright.search.bayes.estimate import Estimate

        estimate = Estimate.of(view)
        finished = view.rows[~view.failed]
        means = estimate.predict(finished)[0]
        order = np.argsort(means, kind="stable")
        moves, generator = Moves(view.space), rng(view.seed, "gain", view.count_results)
        rows = moves.candidates(generator, finished[order[:20]], _CANDIDATES)
        # The greatest expected improvement over candidates and their neighbours, round by round.
        greatest = 0.0
        for _ in range(_ROUNDS + 1):
            scores = expected_improvement(*estimate.predict(rows), float(means.min()))
            greatest = max(greatest, float(scores.max()))
            best = rows[np.argsort(-scores, kind="stable")[:_STARTS]]
            rows = moves.neighbours(generator, best, _CANDIDATES // 2)
        return greatest

    def met(self, view: SearchView) -> bool:
        """Whether to end the search now."""
        return self.step(view) > 0 and self.gain(view) < self.least
