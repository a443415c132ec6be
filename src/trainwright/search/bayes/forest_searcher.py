"""Bayesian optimisation with a random forest (extremely randomised trees), in milliseconds per proposal.

Trees: Geurts et al., Machine Learning 63 (2006). A confidence bound on the epistemic variance with a kappa that decays
periodically, and batches with exponential kappas (qUCBd): Égelé et al., arXiv 2207.00479. Several objectives by
dominance (see `dominance`). Plain asynchronous UCB (kappa_final=1.96, pending="ignore"):
arXiv 2603.13501. What earlier studies teach: see `transfer`.

What an ask must do, for n rows, T = 10 trees, d = 10 columns: draw and settle 1,000 + 2 * 385 rows (about 0.5 ms of
array work, whatever n), walk each down T trees of depth about 2 ln n (230,000 steps at n = 1,000, some 2.5 ns each
while a tree stays in cache: 0.6 ms), and average n targets into the leaves of T trees (T n additions: 0.03 ms at 1,000,
0.4 ms at 10,000). Replanting, O(n d log n), falls on one tree every n / 100 trials. Making, checking and naming one
configuration costs another 0.2 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.errors import SearchError
from trainwright.randomness import rng
from trainwright.search.bayes.loop import Acquisition, BayesianSearcher, find_new, good_rows, least_places
from trainwright.search.searcher import propose
from trainwright.search.transfer import Earlier, WarmStart, WarmStartRows
from trainwright.search.view import SearchView
from trainwright.space import Space
from trainwright.space.configuration import Configuration
from trainwright.validators import integer, number, one_of

if TYPE_CHECKING:
    from trainwright.search.bayes.forest_model import Forest

__all__ = ["ForestSearcher"]

Pending = Literal["exclude", "ignore"]

_CROWDING = 0.5  # of the trials under way: up to so many of the best candidates are left to them
_CROWDED = 32  # trials under way, from which on a local search would lead all of them to the same few rows
_PERIOD = 10  # trials after which kappa starts again


class _Grown(NamedTuple):
    """A forest, and the rows of earlier studies that it has learned."""

    forest: "Forest"
    trusted: NDArray[np.bool_]


class ConfidenceBound(Acquisition):
    """Mean - kappa * deviation over the trees of a forest; the appetites are the kappas."""

    def __init__(self, space: Space, forest: "Forest", kappas: Array, *, under_way: int) -> None:
        self._space, self._forest, self.appetites = space, forest, kappas
        self.crowding = _CROWDING
        self.local_search = under_way < _CROWDED

    def predict(self, rows: Array) -> Array:
        """Return mean and deviation [2, rows] at full fidelity."""
        M = np.ones((len(rows), self._space.dimension + 1))
        M[:, :-1] = self._space.model_matrix(rows)
        return np.stack(self._forest.trees.predict(M))

    def score(self, predicted: Array, appetite: float) -> Array:
        """Return the bounds; the deviation is the epistemic one, the spread of the trees' means."""
        bounds: Array = predicted[0] - appetite * predicted[1]
        return bounds


@dataclass(frozen=True, kw_only=True, slots=True)
class ForestSearcher(BayesianSearcher):
    """Propose where mean - kappa * deviation over the trees is least.

    Handles conditions, requirements, several objectives, bounds and constraints, intermediate values (as a column z,
    asked at z = 1), failures and any number of pending trials. An ask costs about
    O(trees * (rows + candidates * depth)).
    """

    name: ClassVar[str] = "forest"

    trees: Annotated[int, integer(minimum=1)] = 10
    kappa: Annotated[float, number(above=0), "kappa at the start of each period of 10 trials"] = 1.96
    kappa_final: Annotated[float, number(above=0), "the value towards which kappa decays"] = 0.01
    pending: Annotated[Pending, one_of(*get_args(Pending)), "whether pending trials may be proposed again"] = "exclude"
    max_rows: Annotated[int, integer(minimum=10), "rows per tree: the best, the newest, a sample of the rest"] = 10_000
    warm_start: Earlier | Sequence[Earlier] | None = field(default=None, hash=False)

    def check_together(self) -> None:
        """Refuse a kappa that grows; read the earlier studies."""
        if self.kappa_final > self.kappa:
            raise SearchError(
                f"ForestSearcher.kappa_final: got {self.kappa_final!r}, above kappa {self.kappa!r}; allowed: a number "
                "up to kappa, equal to it for a kappa that stays"
            )
        # Earlier studies are read once, so that later results of theirs change nothing here.
        if self.warm_start is not None:
            object.__setattr__(self, "warm_start", WarmStart.of(self.warm_start))

    def learn(self, view: SearchView) -> None:
        """Grow the forest by new results: the next proposal then costs less, and is the same."""
        if view.count_results >= max(1, self._count_initial(view)):
            self._grow(view)

    def in_design(self, view: SearchView, number: int) -> bool:
        """Whether a trial is of the initial design; with rows of other studies the forest needs but a start."""
        if self.warm_start is not None:
            return number < self._count_opening(view)
        return BayesianSearcher.in_design(self, view, number)

    def _ask_surrogate(self, view: SearchView, numbers: Sequence[int], taken: set[bytes]) -> list[Configuration]:
        """Choose a batch from one forest and one set of candidates.

        The first trial has the kappa of its number, the others draw theirs from exponential laws of such means.
        """
        kappas = np.array([self._kappa(view, trial) for trial in numbers])
        for place, trial in enumerate(numbers[1:], start=1):
            kappas[place] *= rng(view.seed, "kappa", trial).standard_exponential()
        recalled, (forest, trusted) = self._recall(view), self._grow(view)
        bound = ConfidenceBound(view.space, forest, kappas, under_way=len(view.pending))
        old, y = np.split(forest.value(), [forest.count - view.count])
        order = least_places(np.where(view.failed, np.inf, y), 20 * (view.top + 1))  # a trial has a row at each rung
        bound.good = good_rows(view, order)
        if recalled is not None:
            bound.good = np.concatenate([bound.good[:10], recalled.rows[trusted][least_places(old, 10)]])
        known = view.tried
        if self.pending == "ignore":
            bound.crowding, bound.local_search = 0.0, True
            known = known - set(view.space.row_keys(view.pending))
        rows = self._choose(view, bound, numbers, known, taken)
        return [
            replace(found, number=number, origin={"searcher": self.name, "kappa": kappa})
            for found, number, kappa in zip(view.space.configurations(rows), numbers, kappas.tolist(), strict=True)
        ]

    def _kappa(self, view: SearchView, number: int) -> float:
        # An exponential decay from `kappa` towards `kappa_final` that starts again every period.
        at = number - self._count_initial(view)
        kappa = float(self.kappa * (self.kappa_final / self.kappa) ** (at % _PERIOD / _PERIOD))
        if view.slot is not None:  # each worker its own appetite for the unknown, of the same mean
            kappa *= float(-np.log1p(-rng(view.seed, "kappa-slot", view.slot).random()))
        return kappa

    def propose_design(self, view: SearchView, number: int, taken: set[bytes]) -> Configuration:
        """Return a configuration of the initial design; the best of each earlier study first."""
        recalled = self._recall(view)
        if recalled is not None and number < self._count_opening(view):
            best = recalled.best[number : number + 1]
            best = best[view.space.legal(best)]  # requirements may forbid it
            if find_new(view, best, np.zeros(len(best)), view.tried, taken) is not None:
                return propose(view, best[0], number, searcher=self.name, design="recalled")
        return BayesianSearcher.propose_design(self, view, number, taken)

    def _recall(self, view: SearchView) -> WarmStartRows | None:
        if self.warm_start is None:
            return None
        recalled = view.memo.get(("recalled", self))
        if not isinstance(recalled, WarmStartRows):
            experience = cast(WarmStart, self.warm_start)
            recalled = WarmStartRows(experience, view.space, view.seed, view.objectives)
            view.memo["recalled", self] = recalled
        return recalled

    def _count_opening(self, view: SearchView) -> int:
        """Return how many trials begin with the best of earlier studies."""
        studies = len(cast(WarmStart, self.warm_start).sources)
        return min(studies, max(1, self._count_initial(view)))

    def _grow(self, view: SearchView) -> _Grown:
        from trainwright.search.bayes.forest_model import Forest

        recalled, ranks, trusted = self._recall(view), None, np.zeros(0, np.bool_)
        if recalled is not None:
            trusted = recalled.trusted(view)
            if trusted.any():
                view = view.recalling(recalled.rows[trusted], recalled.owners[trusted])
                ranks = recalled.ranks[trusted].T
        grown = view.memo.get(self)
        if not isinstance(grown, _Grown) or not np.array_equal(grown.trusted, trusted) or grown.forest.outdated(view):
            grown = view.memo[self] = _Grown(Forest(view, self.trees, self.max_rows, ranks), trusted)
        grown.forest.update(view)
        return grown
