"""Bayesian optimisation with Gaussian processes, best with few trials and below 20 columns.

Expected improvement in its logarithm, so that its gradient does not vanish far from the optimum (Ament et al., arXiv
2310.20708), over the least posterior mean of the told rows, which noise does not fool. Candidates come from the space,
from mutations and crossovers of good rows, and from their neighbours; the continuous columns of the best then climb by
L-BFGS. Pending trials are believed at the posterior mean, which leaves the mean and lowers the deviation around them.
Several objectives have a process each, and every trial its own linear scalarisation of them (arXiv 2309.14936).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SearchError
from trainwright.randomness import rng
from trainwright.search.bayes.candidates import Moves
from trainwright.search.bayes.gaussian_process import Embedding, Posterior, fit
from trainwright.search.bayes.improvement import Improvement
from trainwright.search.bayes.scalarisation import penalised, simplex
from trainwright.search.quasirandom import from_the_middle, spread
from trainwright.search.searcher import draw_new, opening, propose
from trainwright.search.view import SearchView
from trainwright.settings import Settings
from trainwright.space import Configuration
from trainwright.validators import integer, one_of, optional

__all__ = ["GaussianProcessSearcher"]

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Design = Literal["halton", "sobol", "random"]

_ROUNDS = 2  # of local search around the best candidates
_STARTS = 5  # rows whose neighbours a round asks
_CLIMBERS = 3  # rows from which continuous columns climb
_LOWEST, _FENCE = -100.0, 1.5  # losses are clipped so many interquartile ranges from median and third quartile
_POWERS = np.linspace(-3.0, 3.0, 49)
_GROWTH, _GROWTHS = 16, 10  # hyperparameters are fitted anew after n / 16 more rows, at most max_rows / 10
_BEST = 0.5  # of the rows that a crowded rung may keep: the best


class _Known(NamedTuple):
    """What is kept between two questions."""

    state: tuple[int, int, bool]  # of the view, for which it holds
    first: Places  # the rows to which hyperparameters were fitted
    posteriors: list[Posterior]


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianProcessSearcher(Settings, error=SearchError):
    """Propose where Gaussian processes expect the most improvement.

    Handles conditions, requirements, several objectives, intermediate values (a row for each rung that a trial reached,
    with a column z, asked at z = 1), failures (as the worst result) and pending trials. An ask costs O(candidates *
    n^2) for n rows, of which at most `max_rows` are kept: all of the highest rungs, below them the best and an even
    sample.
    """

    initial: Annotated[int | None, optional(integer(minimum=0))] = (
        None  # results before the process is asked; None = columns + 1, at most half of all trials
    )
    design: Annotated[Literal["halton", "sobol", "random"], one_of("halton", "sobol", "random")] = (
        "halton"  # of the first trials; sequences from the middle out
    )
    points: Sequence[Mapping[str, Any]] = field(default=(), hash=False)  # configurations to try first
    candidates: Annotated[int, integer(minimum=8)] = 1000  # rows asked before the local search
    max_rows: Annotated[int, integer(minimum=20)] = 500  # that the process holds

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number: the initial design, then the place of most expected improvement."""
        taken: set[bytes] = set()
        if view.count_results < max(1, self._initial(view)):
            return [self._design(view, number, taken) for number in numbers]
        # Several objectives become one by weights that are drawn anew for each batch.
        weights = simplex(rng(view.seed, "weights", numbers[0]), view.objectives)
        embedding = Embedding(view.space, fidelity=view.partial)
        places, posteriors = self._posteriors(view, embedding)
        # Losses of all rungs stay on one scale, as the process sees the rung itself: to lay the rungs over each other,
        # as the forest does, found less on learning curves (`benchmarks/search/rules.py`).
        targets = _penalised(view.outcomes[places], view.bounds, view.objectives)
        improvement = Improvement(view.space, embedding, posteriors, targets, weights)
        # Pending trials count at their posterior mean, so that no proposal crowds them.
        improvement.believe(view.pending)
        good = _good(view, places, improvement.means)
        mix = {"weights": weights.tolist()} if view.objectives > 1 else {}
        proposals = []
        for number in numbers:
            row = self._choose(view, improvement, good, number, taken)
            improvement.believe(row[None, :])
            proposals.append(propose(view, row, number, searcher="gp", **mix))
        return proposals

    def _initial(self, view: SearchView) -> int:
        if self.initial is not None:
            return self.initial
        most = view.space.dimension + 1
        return most if view.trials is None else min(most, max(1, view.trials // 2))

    def _design(self, view: SearchView, number: int, taken: set[bytes]) -> Configuration:
        opened = opening(view, number, taken, self.points, searcher="gp")
        if opened is not None:
            return opened
        if self.design == "random":
            row = draw_new(view, number, taken, "initial")
        else:
            place = from_the_middle(view, number, max(2 * view.space.dimension + 1, self._initial(view)), self.design)
            row = spread(view, place, taken, self.design)
        return propose(view, row, number, searcher="gp", design=self.design)

    def _posteriors(self, view: SearchView, embedding: Embedding) -> tuple[Places, list[Posterior]]:
        """Return the rows that count, and a posterior for each objective: fitted to the first of them, grown since."""
        # Hyperparameters are fitted only at certain sizes, so that a resumed study repeats them.
        size, later = _fitted_sizes(view.count, self.max_rows // _GROWTHS)
        state = view.revision, size, view.partial
        known = cast(_Known | None, view.memo.get(self))
        if known is None or known.state != state:
            known = None
            # What comes until the next fit needs room too.
            first = _thinned(view, size, self.max_rows - (later - 1 - size if later - 1 > self.max_rows else 0))
        else:
            first = known.first
        places = np.concatenate([first, np.arange(size, view.count)])
        points = embedding(view.rows[places], view.progress[places])
        if known is None or not _begins(points, known.posteriors[0].points):
            y = _penalised(view.outcomes[first], view.bounds, view.objectives)
            generators = [rng(view.seed, "fit", size, j) for j in range(view.objectives)]
            begun = points[: len(first)]
            fitted = [fit(begun, embedding.owners, y[j], generator) for j, generator in enumerate(generators)]
            posteriors = [Posterior.of(found, begun, embedding.owners) for found in fitted]
        else:
            posteriors = known.posteriors
        for row in range(len(posteriors[0].points), len(places)):  # singly, so that a resumed study rounds alike
            posteriors = [posterior.append(points[row : row + 1]) for posterior in posteriors]
        view.memo[self] = _Known(state, first, posteriors)
        return places, posteriors

    def _choose(self, view: SearchView, improvement: Improvement, good: Array, number: int, taken: set[bytes]) -> Array:
        """Return the row of most expected improvement that is neither tried nor taken, after a local search."""
        moves = _moves(view)
        rows = moves.candidates(rng(view.seed, "candidates", number), good, self.candidates)
        scores = improvement.score(rows)
        # Local search: neighbours of the best candidates, then gradient steps in the continuous columns.
        generator = rng(view.seed, "mutate", number)
        for _ in range(_ROUNDS):
            near = moves.neighbours(generator, rows[_most(scores, _STARTS)], self.candidates // 2)
            rows = np.concatenate([rows, near])
            scores = np.concatenate([scores, improvement.score(near)])
        climbed = improvement.climb(rows[_most(scores, _CLIMBERS)], generator)
        if len(climbed):
            rows = np.concatenate([rows, climbed])
            scores = np.concatenate([scores, improvement.score(climbed)])
        for count in (64, len(rows)):  # the first few nearly always hold a new one: no key of the rest is needed
            order = _most(scores, count)
            for place, key in zip(order, view.space.row_keys(rows[order]), strict=True):
                if key not in view.tried and key not in taken:
                    taken.add(key)
                    found: Array = rows[place]
                    return found
        return draw_new(view, number, taken, "last")


def _penalised(losses: Array, bounds: Array, objectives: int) -> Array:
    """Return targets [objectives, rows] of losses [rows, objectives and constraints], broken bounds added to each."""
    pairs = [_standardised(column, bound) for column, bound in zip(losses.T, bounds, strict=True)]
    return penalised(np.stack([y for y, _ in pairs]), objectives, np.array([bound for _, bound in pairs]))


def _standardised(losses: Array, bound: float) -> tuple[Array, float]:
    """Return losses as targets of mean 0 and deviation 1, nearly normal, and a bound on their scale.

    Losses are clipped far outside their quartiles, then bent by Yeo and Johnson's power (Biometrika 87, 2000) of
    greatest likelihood, since a process takes its residuals for normal. A failure is as bad as the worst result.
    """
    fine = np.isfinite(losses)
    if not fine.any():
        return np.zeros(len(losses)), bound
    values = 0.5 * np.append(losses[fine], bound)  # halves, since the range of doubles is no double
    low, middle, high = np.quantile(values[:-1], [0.25, 0.5, 0.75])
    scale = high - low or np.abs(values[:-1] - middle).max() or 1.0
    values = np.clip((values - middle) / scale, _LOWEST, (high - middle) / scale + _FENCE)
    deviation = values[:-1].std() or 1.0
    values = _bent((values - values[:-1].mean()) / deviation)
    deviation = values[:-1].std() or 1.0
    values = (values - values[:-1].mean()) / deviation
    # A failure counts as the worst result, or the process would return to where trials fail.
    y = np.full(len(losses), values[:-1].max())
    y[fine] = values[:-1]
    return y, float(values[-1]) if np.isfinite(bound) else bound


def _bent(values: Array) -> Array:
    """Return values under the power transform that makes all but the last most nearly normal."""
    powers = _POWERS[:, None]
    size = np.log1p(np.abs(values))
    up = values >= 0.0
    # ((1 + |v|)^p - 1) / p upwards with p the power, downwards with 2 less the power and the other sign.
    p = np.where(up, powers, 2.0 - powers)
    bent = np.where(up, 1.0, -1.0) * np.where(np.abs(p) < 1e-9, size, np.expm1(p * size) / np.where(p == 0.0, 1.0, p))
    slopes = (np.where(up, powers - 1.0, 1.0 - powers) * size)[:, :-1].sum(axis=1)  # logarithms of the derivative
    deviation = np.maximum(bent[:, :-1].std(axis=1), 1e-12)
    best = int(np.argmax(slopes - (len(values) - 1) * np.log(deviation)))
    found: Array = bent[best]
    return found


def _fitted_sizes(count: int, most: int) -> tuple[int, int]:
    """Return at how many rows hyperparameters were fitted last, and will be next: every size to 16, then 1/16 apart."""
    size = 1
    while (following := size + max(1, min(most, size // _GROWTH))) <= count:
        size = following
    return size, following


def _thinned(view: SearchView, count: int, most: int) -> Places:
    """Return the places of at most so many of the first `count` rows, in their order.

    From the highest rung down all rows are kept; of the first rung that is too crowded the best and an even sample of
    the rest, and nothing below.
    """
    if count <= most:
        return np.arange(count)
    rungs = view.rungs[:count]
    chosen: list[Places] = []
    room = most
    # Rows of higher rungs say more about full training, so they are taken first.
    for rung in np.unique(rungs)[::-1]:
        here = np.flatnonzero(rungs == rung)
        if len(here) > room:
            ranks = np.argsort(np.argsort(view.losses[here], axis=0, kind="stable"), axis=0).sum(axis=1)
            order = here[np.argsort(np.where(view.failed[here], np.inf, ranks), kind="stable")]
            best = int(_BEST * room)
            rest = np.sort(order[best:])
            here = np.concatenate([order[:best], rest[np.linspace(0, len(rest) - 1, room - best).astype(np.intp)]])
        chosen.append(here)
        room -= len(here)
        if not room:
            break
    return np.sort(np.concatenate(chosen))


def _good(view: SearchView, places: Places, means: Array) -> Array:
    """Return the 20 rows of least mean that have a result, best first, one a trial."""
    order = places[np.argsort(means, kind="stable")]
    order = order[~view.failed[order]]
    _, first = np.unique(view.numbers[order], return_index=True)
    good: Array = view.rows[order[np.sort(first)[:20]]]
    return good


def _begins(points: Array, known: Array) -> bool:
    return points.shape[1] == known.shape[1] and np.array_equal(points[: len(known)], known)


def _moves(view: SearchView) -> Moves:
    moves = view.memo.get("moves")
    if not isinstance(moves, Moves):
        moves = view.memo["moves"] = Moves(view.space)
    return moves


def _most(scores: Array, count: int) -> Places:
    """Return the places of the `count` greatest scores, greatest first, ties by place."""
    return np.argsort(-scores, kind="stable")[:count]
