"""Search in high dimensions: separable CMA-ES, whose every other draw a Gaussian process chooses.

A normal distribution of independent columns follows the better half of each generation (Ros and Hansen, PPSN X, 2008;
the constants are those of Hansen, arXiv 1604.00772). In a hundred columns a process alone knows too little of where
to look, and the distribution alone wastes draws in columns that matter little; together they found more than either
(`benchmarks/search`). Rows that the process chose count as draws, their steps shortened (Hansen, arXiv 1110.4181).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from trainwright.aliases import Array
from trainwright.randomness import rng
from trainwright.search.bayes.candidates import make_legal
from trainwright.search.bayes.gp_searcher import GaussianProcessSearcher
from trainwright.search.bayes.loop import draw_weights, find_new
from trainwright.search.searcher import draw_new, propose, propose_default
from trainwright.search.view import SearchView
from trainwright.space.configuration import Configuration

__all__ = ["WideSearcher", "update_distribution"]

_DEVIATION = 1.0 / 6.0  # of each column at first: the middle third of a unit column is two of them
_DRAWS = 500  # among which the process chooses
_FEW = 8  # of which the first new one is proposed
_ROWS = 200  # that the process holds


class _Normal(NamedTuple):
    """Mean and deviation [columns] of the next draws, in units, and rows whose choices are copied, best first."""

    mean: Array
    deviation: Array
    good: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class WideSearcher:
    """Propose draws of a distribution that follows the best, for many numeric columns.

    Handles several objectives, conditions, requirements, choices (copied from the best, one in the mean changed),
    failures (the worst) and reports (who came farther is better). What it proposes depends on which trials are told,
    not on their order. An ask costs O(results * columns) for the distribution, and what a process of 200 rows costs.
    """

    name: ClassVar[str] = "cma-es"

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number."""
        # After so many trials the distribution moves.
        generation = 4 + int(3 * np.log(view.space.dimension))
        normal = _distribution(view, generation)
        weights = draw_weights(rng(view.seed, "weights", numbers[0]), view.objectives)
        process = None
        if view.count_results >= generation and any(number % 2 for number in numbers):
            process = GaussianProcessSearcher(max_rows=_ROWS).acquire(view, weights)
        taken: set[bytes] = set()
        found = []
        for number in numbers:
            opened = propose_default(view, number, taken, searcher=self.name)
            if opened is not None:
                found.append(opened)
                continue
            chosen = process if number % 2 else None
            rows = _draw_candidates(view, normal, number, _DRAWS if chosen else _FEW)
            scores = chosen.score(chosen.predict(rows), 0.0) if chosen else np.arange(len(rows), dtype=np.float64)
            place = find_new(view, rows, scores, view.tried, taken)
            row = rows[place] if place is not None else draw_new(view, number, taken, "last")
            if process is not None:
                process.believe_pending(row[None, :])
            found.append(propose(view, row, number, searcher=self.name, by="gp" if chosen else "cma-es"))
        return found


def _distribution(view: SearchView, generation: int) -> _Normal:
    """Return the distribution that follows what was told, by trial numbers, whatever the order in which it came."""
    # A trial counts once, by its farthest row: who was stopped earlier is worse.
    rungs = np.where(view.failed, -1, view.rungs)
    # Several objectives count alike, by the ranks of each.
    losses = np.argsort(np.argsort(view.losses, axis=0, kind="stable"), axis=0) if view.objectives > 1 else view.losses
    order = np.lexsort((view.numbers, losses.sum(axis=1), -rungs))
    ranks = np.empty(view.count)
    ranks[order] = np.arange(view.count)
    by_trial = order[np.unique(view.numbers[order], return_index=True)[1]]
    rows = view.rows[by_trial]
    numeric = np.array([column.kind != "choice" for column in view.space.columns])
    mean, deviation = update_distribution(np.where(numeric, rows, np.nan), ranks[by_trial], generation)
    best = by_trial[np.argsort(ranks[by_trial], kind="stable")[: generation // 2]]
    return _Normal(mean, deviation, view.rows[best])


def _draw_candidates(view: SearchView, normal: _Normal, number: int, count: int) -> Array:
    """Return about so many legal rows of the distribution."""
    generator = rng(view.seed, "cma-es", number)
    drawn = normal.mean + normal.deviation * generator.standard_normal((count, len(normal.mean)))
    # Back in from a bound, where a clipped draw would heap up.
    drawn = 1.0 - np.abs(1.0 - np.abs(drawn) % 2.0)
    points = [column.points or 0 if column.kind == "choice" else 0 for column in view.space.columns]
    choices = np.flatnonzero(points)
    for c in choices:
        drawn[:, c] = generator.integers(points[c], size=count)
        if len(normal.good):
            old = normal.good[generator.integers(len(normal.good), size=count), c]
            fresh = np.isnan(old) | (generator.random(count) * len(choices) < 1.0)
            drawn[:, c] = np.where(fresh, drawn[:, c], old)
    return make_legal(view.space, drawn, generator)


def update_distribution(rows: Array, losses: Array, generation: int) -> tuple[Array, Array]:
    """Return mean and deviation [columns] after whole generations of unit rows [trials, columns]; NaN is the mean."""
    d, parents = rows.shape[1], generation // 2
    weights = np.log((generation + 1) / 2) - np.log(np.arange(1, parents + 1))
    weights /= weights.sum()
    mass = 1.0 / float(weights @ weights)  # the effective number of parents
    # Learning rates: of the path of the step size and its damping, of the path of the covariance, and of both updates.
    rate_s = (mass + 2) / (d + mass + 5)
    # A further term of Hansen's is nothing unless there are more parents than columns.
    damping = 1 + rate_s
    rate_c = (4 + mass / d) / (d + 4 + 2 * mass / d)
    one = 2 / ((d + 1.3) ** 2 + mass)
    many = min(1 - one, 2 * (mass - 2 + 1 / mass) / ((d + 2) ** 2 + mass))
    # A diagonal has fewer numbers to learn, so that it may learn faster.
    one = min(1.0, one * (d + 2) / 3)
    many = min(1 - one, many * (d + 2) / 3)
    length = d**0.5 * (1 - 1 / (4 * d) + 1 / (21 * d * d))  # of a standard normal vector, expected
    mean, variances, sigma = np.full(d, 0.5), np.ones(d), _DEVIATION
    path_s, path_c = np.zeros(d), np.zeros(d)
    for place in range(len(losses) // generation):
        told = slice(place * generation, (place + 1) * generation)
        best = np.argsort(losses[told], kind="stable")[:parents]
        steps = np.nan_to_num((rows[told][best] - mean) / sigma)
        # Rows that were not drawn from this distribution lie too far out: their steps are shortened.
        sizes = np.sqrt((steps * steps / variances).sum(axis=1))
        steps *= np.minimum(1.0, (d**0.5 + 2 * d / (d + 2)) / np.maximum(sizes, 1e-12))[:, None]
        step = weights @ steps
        mean = mean + sigma * step
        path_s = (1 - rate_s) * path_s + (rate_s * (2 - rate_s) * mass) ** 0.5 * step / np.sqrt(variances)
        norm = float(np.linalg.norm(path_s))
        # A path that has grown long stalls the covariance until the step size has followed.
        steady = norm / (1 - (1 - rate_s) ** (2 * (place + 1))) ** 0.5 < (1.4 + 2 / (d + 1)) * length
        path_c = (1 - rate_c) * path_c + steady * (rate_c * (2 - rate_c) * mass) ** 0.5 * step
        kept = (1 - one - many) * variances + one * (not steady) * rate_c * (2 - rate_c) * variances
        variances = kept + one * path_c * path_c + many * (weights @ (steps * steps))
        sigma *= float(np.exp(min(1.0, rate_s / damping * (norm / length - 1))))
    return mean, sigma * np.sqrt(variances)
