"""The loop of Bayesian optimisation, whatever the surrogate: initial design, candidates, local search, no duplicates.

A surrogate is asked through an `Acquisition`, made for one question. Candidates come from the space, from mutations and
crossovers of good rows, and from the neighbours of the best; what was tried or is under way is not proposed again.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from trainwright.aliases import Array, Places
from trainwright.errors import SearchError
from trainwright.randomness import rng
from trainwright.search.bayes.candidates import moves_of
from trainwright.search.quasirandom import draw_spread, from_the_middle
from trainwright.search.searcher import draw_new, propose, propose_default
from trainwright.search.view import SearchView
from trainwright.settings import Settings
from trainwright.space.configuration import Configuration
from trainwright.validators import integer, optional

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

__all__ = ["Acquisition", "BayesianSearcher", "add_penalties", "draw_weights", "find_new", "good_rows", "least_places"]


_INITIAL = 12  # results of the design at most: in more columns each one more was as good as lost
_ROUNDS = 2  # of local search around the best candidates
_STARTS = 5  # rows whose neighbours a round asks
_PER_PROPOSAL = 4  # candidates at least, in a batch
_PENALTY = 2.0  # of a broken bound, times its excess


class Acquisition(ABC):
    """An acquisition function: what a surrogate believes, for the trials `numbers` that share their candidates.

    An appetite is a number for each trial by which scores may weigh what is unknown.
    """

    good: Array  # rows, best first, from which candidates are bred
    appetites: Array  # [numbers]
    neighbours: ClassVar[float] = 1.0  # of the candidates: so many neighbours a round, at most
    climbers: ClassVar[int] = 0  # best rows that climb
    local_search: bool = True  # around the best candidates, for a single trial; else the best are taken as drawn
    crowding: float = 0.0  # of the trials under way: up to so many of the best rows are left to them

    @abstractmethod
    def predict(self, rows: Array) -> Array:
        """Return what the surrogate says of rows, as columns [figures, rows]."""

    @abstractmethod
    def score(self, predicted: Array, appetite: float) -> Array:
        """Return the scores [rows] of predictions, least where a trial is most wanted."""

    def climb(self, rows: Array, generator: np.random.Generator) -> Array:  # noqa: ARG002 -- for surrogates with gradients
        """Return legal rows to which the continuous columns of `rows` can be improved; none without a gradient."""
        return rows[:0]


@cache
def _blas() -> "ThreadpoolController":
    """Return what sets the threads of numpy's and SciPy's BLAS."""
    import scipy.linalg  # noqa: F401 -- only what is loaded is found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@dataclass(frozen=True, kw_only=True, slots=True)
class BayesianSearcher(Settings, ABC, error=SearchError):
    """What searchers with a surrogate share; each fits its own surrogate in `_ask_surrogate`."""

    name: ClassVar[str]  # as the origin of proposals

    initial: Annotated[int | None, optional(integer(minimum=0)), "results before the surrogate is asked"] = (
        None  # columns + 1, at most 12
    )
    candidates: Annotated[int, integer(minimum=8), "rows asked before the local search"] = 1000

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number: the initial design, then what the surrogate wants most."""
        taken: set[bytes] = set()
        found = {n: self.propose_design(view, n, taken) for n in numbers if self.in_design(view, n)}
        late = [n for n in numbers if n not in found]
        if late:
            # On cores that train, threads of BLAS wait for one another: a question took ten times as long. One thread
            # also makes the same proposals on every machine.
            with _blas().limit(limits=1, user_api="blas"):
                found |= zip(late, self._ask_surrogate(view, late, taken), strict=True)
        return [found[n] for n in numbers]

    @abstractmethod
    def _ask_surrogate(self, view: SearchView, numbers: Sequence[int], taken: set[bytes]) -> list[Configuration]: ...

    def _count_initial(self, view: SearchView) -> int:
        """Return the number of results before the surrogate is asked."""
        if self.initial is not None:
            return self.initial
        # Not a share of the budget: a study may grow call by call, and is to be the same as if it had not.
        return min(view.space.dimension + 1, _INITIAL)

    def in_design(self, view: SearchView, number: int) -> bool:  # noqa: ARG002 -- for searchers that begin otherwise
        """Whether a trial is of the initial design."""
        return view.count_results < max(1, self._count_initial(view))

    def propose_design(self, view: SearchView, number: int, taken: set[bytes]) -> Configuration:
        """Return a configuration of the initial design: the default, then a spread sequence."""
        opened = propose_default(view, number, taken, searcher=self.name)
        if opened is not None:
            return opened
        # The low-discrepancy sequence starts in the middle of the space and moves outwards.
        count = max(2 * view.space.dimension + 1, self._count_initial(view))
        row = draw_spread(view, from_the_middle(view, number, count), taken)
        return propose(view, row, number, searcher=self.name, design="halton")

    def _choose(
        self, view: SearchView, acquisition: Acquisition, numbers: Sequence[int], known: set[bytes], taken: set[bytes]
    ) -> Array:
        """Return each trial's row of least score that is neither known nor taken; a single one after a local search."""
        moves, good, appetites = moves_of(view), acquisition.good, acquisition.appetites
        count = max(self.candidates, _PER_PROPOSAL * len(numbers))
        rows = moves.candidates(rng(view.seed, "candidates", numbers[0]), good, count)
        predicted = acquisition.predict(rows)
        # Local search: each round asks the neighbours of the best rows so far. A batch takes what was drawn, or all of
        # it would crowd around a few rows (`benchmarks/scale/waves.py`).
        if acquisition.local_search and len(numbers) == 1:
            generator, appetite = rng(view.seed, "mutate", numbers[0]), float(appetites[0])
            most = int(acquisition.neighbours * self.candidates)
            for _ in range(_ROUNDS):
                places = least_places(acquisition.score(predicted, appetite), _STARTS)
                rows, predicted = _extend(acquisition, rows, predicted, moves.neighbours(generator, rows[places], most))
            if acquisition.climbers:
                best = least_places(acquisition.score(predicted, appetite), acquisition.climbers)
                rows, predicted = _extend(acquisition, rows, predicted, acquisition.climb(rows[best], generator))
        # Trials that are under way were proposed from much the same results: all would crowd around the same best row.
        crowd = acquisition.crowding * rng(view.seed, "crowd", numbers[0]).random(len(numbers))
        if len(numbers) == 1:
            scores = acquisition.score(predicted, float(appetites[0]))
            scores[least_places(scores, int(crowd[0] * len(view.pending)))] = np.inf
            place = find_new(view, rows, scores, known, taken)
            return (rows[place] if place is not None else draw_new(view, numbers[0], taken, "last"))[None, :]
        # A batch takes the best row for each appetite in turn, among those that are neither known nor taken.
        keys = view.space.row_keys(rows)
        fresh = {key: place for place, key in reversed([*enumerate(keys)]) if key not in known and key not in taken}
        places = np.sort(np.fromiter(fresh.values(), np.intp, len(fresh)))
        rows, predicted = rows[places], predicted[:, places]
        taken.update(fresh)  # what is drawn instead is none of them
        chosen = np.empty((len(numbers), view.space.dimension))
        gone = np.empty(min(len(numbers), len(rows)), np.intp)
        for place, appetite in enumerate(appetites[: len(gone)].tolist()):
            scores = acquisition.score(predicted, appetite)
            scores[gone[:place]] = np.inf
            gone[place] = np.argmin(scores)
        chosen[: len(gone)] = rows[gone]
        for place in range(len(gone), len(numbers)):
            chosen[place] = draw_new(view, numbers[place], taken, "last")
        return chosen


def find_new(view: SearchView, rows: Array, scores: Array, known: set[bytes], taken: set[bytes]) -> int | None:
    """Return the place of the least score whose row is no duplicate (known or taken), and take it; None if all are."""
    for count in (1, 64, len(rows)):  # the first few nearly always hold a new one: no key of the rest is needed
        order = least_places(scores, count)
        for place, key in zip(order.tolist(), view.space.row_keys(rows[order]), strict=True):
            if key not in known and key not in taken:
                taken.add(key)
                return int(place)
    return None


def least_places(scores: Array, count: int) -> Places:
    """Return the places of the `count` least scores, least first, ties by place."""
    if count >= len(scores):
        return np.argsort(scores, kind="stable")
    if count == 1:
        return np.array([np.argmin(scores)])
    places = np.sort(np.argpartition(scores, count)[:count])
    return places[np.argsort(scores[places], kind="stable")]


def good_rows(view: SearchView, order: Places) -> Array:
    """Return the rows of the 20 best trials that have a result, best first; `order` are the told rows, best first."""
    order = order[~view.failed[order]]
    _, first = np.unique(view.numbers[order], return_index=True)
    good: Array = view.rows[order[np.sort(first)[:20]]]
    return good


def _extend(acquisition: Acquisition, rows: Array, predicted: Array, more: Array) -> tuple[Array, Array]:
    """Return rows and predictions with those of more rows behind them."""
    if not len(more):
        return rows, predicted
    return np.concatenate([rows, more]), np.concatenate([predicted, acquisition.predict(more)], axis=1)


def add_penalties(targets: Array, objectives: int, bounds: Array) -> Array:
    """Return the objectives' targets [objectives, rows], each with 2 max(0, y_j - b_j) of every bounded target j.

    `targets` [targets, rows] and `bounds` [targets] (inf = none) hold objectives first, then constraints, in one scale.
    """
    over: Array = targets[:objectives]
    for j in np.flatnonzero(np.isfinite(bounds)):
        over = over + _PENALTY * np.maximum(0.0, targets[j] - bounds[j])
    return over


def draw_weights(generator: np.random.Generator, count: int) -> Array:
    """Return weights drawn uniformly from the simplex: normalised exponentials."""
    drawn: Array = -np.log1p(-generator.random(count))
    weights: Array = drawn / drawn.sum()
    return weights
