"""Bayesian optimisation with a forest of extremely randomised trees, in milliseconds per proposal.

Trees: Geurts et al., Machine Learning 63 (2006). A confidence bound on the epistemic variance with a kappa that decays
periodically, and batches with exponential kappas (qUCBd): Égelé et al., arXiv 2207.00479. Several objectives by
dominance (see `dominance`), or by a random scalarisation for each trial (D-MoBO): arXiv 2309.14936. Plain asynchronous
UCB (kappa_final=1.96, pending="ignore"): arXiv 2603.13501. What earlier studies teach: see `transfer`.

What an ask must do, for n rows, T = 10 trees, d = 10 columns: draw and settle 1,000 + 2 * 385 rows (about 0.5 ms of
array work, whatever n), walk each down T trees of depth about 2 ln n (230,000 steps at n = 1,000, some 2.5 ns each
while a tree stays in cache: 0.6 ms), and average n targets into the leaves of T trees (T n additions: 0.03 ms at 1,000,
0.4 ms at 10,000). Replanting, O(n d log n), falls on one tree every n / 100 trials. Making, checking and naming one
configuration costs another 0.2 ms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SearchError
from trainwright.randomness import rng
from trainwright.search.bayes.acquisition import lower_confidence_bound
from trainwright.search.bayes.candidates import Moves
from trainwright.search.bayes.forest_model import Forest, Growth, Target
from trainwright.search.bayes.scalarisation import simplex
from trainwright.search.quasirandom import from_the_middle, spread
from trainwright.search.searcher import draw_new, opening, propose
from trainwright.search.transfer import EarlierStudy, Experience, Recalled, Transfer
from trainwright.search.view import SearchView
from trainwright.settings import Settings
from trainwright.space import Configuration
from trainwright.validators import integer, number, one_of, optional

__all__ = ["ForestSearcher"]

Array = NDArray[np.float64]
Pending = Literal["exclude", "ignore"]

_ROUNDS = 2  # of local search around the best candidates
_STARTS = 5  # rows whose neighbours a round asks, for each appetite
_APPETITES = 8  # of a batch, whose best rows a round starts from
_PER_PROPOSAL = 4  # candidates at least, in a batch
_DRAWS = 16  # of a mixture, of which the first new one is taken
_PERIOD = 10  # trials after which kappa starts again


@dataclass(frozen=True, kw_only=True, slots=True)
class ForestSearcher(Settings, error=SearchError):
    """Propose where mean - kappa * deviation over the trees is least.

    Handles conditions, requirements, several objectives, bounds and constraints, intermediate values (as a column z,
    asked at z = 1), failures and any number of pending trials. An ask costs about
    O(trees * (rows + candidates * depth)).
    """

    trees: Annotated[int, integer(minimum=1)] = 10
    kappa: Annotated[float, number(above=0), "kappa at the start of each period of 10 trials"] = 1.96
    kappa_final: Annotated[float, number(above=0), "the value towards which kappa decays"] = 0.01
    pending: Annotated[Pending, one_of(*get_args(Pending)), "whether pending trials may be proposed again"] = "exclude"
    initial: Annotated[int | None, optional(integer(minimum=0)), "results before the forest is asked"] = (
        None  # columns + 1, at most half of all trials
    )
    points: Sequence[Mapping[str, Any]] = field(default=(), hash=False)  # configurations to try first
    candidates: Annotated[int, integer(minimum=8), "rows asked before the local search"] = 1000
    scalarisation: Annotated[Target, one_of(*get_args(Target)), "of several objectives: dominance, or weighted"] = (
        "dominance"
    )
    weights: tuple[float, ...] | None = None  # of the objectives in a weighted form; None = drawn for each trial
    max_rows: Annotated[int, integer(minimum=10), "rows per tree: the best, the newest, a sample of the rest"] = 10_000
    warm_start: EarlierStudy | Experience | Mapping[str, Any] | str | Path | None = field(default=None, hash=False)
    transfer: Annotated[Transfer, one_of(*get_args(Transfer)), "how the trials of warm_start are used"] = "surrogate"

    def check_together(self) -> None:
        """Refuse a kappa that grows and weights without a weighted form; read the earlier study."""
        if self.kappa_final > self.kappa:
            raise SearchError(
                f"ForestSearcher.kappa_final: got {self.kappa_final!r}, above kappa {self.kappa!r}; allowed: a number "
                "up to kappa, equal to it for a kappa that stays"
            )
        if self.weights is not None:
            object.__setattr__(self, "weights", _normalised(self.weights))
            if self.scalarisation == "dominance" and len(self.weights or ()) > 1:
                raise SearchError(
                    f"ForestSearcher: weights={self.weights!r} need a form that weighs, scalarisation='dominance' "
                    "does not; give scalarisation='linear' or 'augmented' too"
                )
        # The earlier study is read once, so that later results of it change nothing here.
        if self.warm_start is not None:
            object.__setattr__(self, "warm_start", Experience.of(self.warm_start, self.transfer))

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number: the initial design, then the forest's choice.

        A batch shares forest and candidates; its first trial has the kappa of its number, the others draw theirs from
        an exponential law of that mean.
        """
        taken: set[bytes] = set()
        # Trials of the initial design need no forest; all others share one forest and its candidates.
        early = {n: self._design(view, n, taken) for n in numbers if self._opens(view, n)}
        late = [n for n in numbers if n not in early]
        if late:
            early |= zip(late, self._ask_forest(view, late, taken), strict=True)
        return [early[n] for n in numbers]

    def _opens(self, view: SearchView, number: int) -> bool:
        """Whether a trial is of the initial design; told of another study, the forest needs no more than a start."""
        if self.warm_start is not None and self.transfer == "surrogate":
            return number <= len(self.points)
        return view.count_results < max(1, self._initial(view))

    def _ask_forest(self, view: SearchView, numbers: Sequence[int], taken: set[bytes]) -> list[Configuration]:
        first = numbers[0]
        weights = self._weigh(view, first)
        kappas = np.full(len(numbers), self._kappa(view, first))
        for place, trial in enumerate(numbers[1:], start=1):
            kappas[place] *= rng(view.seed, "kappa", trial).standard_exponential()
        rows = self._choose(view, weights, kappas, numbers, taken)
        mix = {"weights": weights.tolist()} if len(weights) > 1 else {}
        return [
            replace(found, number=number, origin={"searcher": "forest", "kappa": kappa, **mix})
            for found, number, kappa in zip(view.space.configurations(rows), numbers, kappas.tolist(), strict=True)
        ]

    def learn(self, view: SearchView) -> None:
        """Grow the forest by what was told since: the next proposal then costs less, and is the same."""
        if view.count_results >= max(1, self._initial(view)):
            self._grown(view)

    def _initial(self, view: SearchView) -> int:
        if self.initial is not None:
            return self.initial
        most = view.space.dimension + 1
        return most if view.trials is None else min(most, max(1, view.trials // 2))

    def _kappa(self, view: SearchView, number: int) -> float:
        # An exponential decay from `kappa` towards `kappa_final` that starts again every period.
        at = number - self._initial(view)
        kappa = float(self.kappa * (self.kappa_final / self.kappa) ** (at % _PERIOD / _PERIOD))
        if view.slot is not None:  # each worker its own appetite for the unknown, of the same mean
            kappa *= float(-np.log1p(-rng(view.seed, "kappa-slot", view.slot).random()))
        return kappa

    def _weigh(self, view: SearchView, number: int) -> Array:
        if self.scalarisation == "dominance":
            return np.ones(1)
        if self.weights is None:
            return simplex(rng(view.seed, "weights", number), view.objectives)
        if len(self.weights) != view.objectives:
            raise SearchError(
                f"ForestSearcher: weights must be one per objective, got {len(self.weights)} for {view.objectives}"
            )
        return np.array(self.weights)

    def _design(self, view: SearchView, number: int, taken: set[bytes]) -> Configuration:
        recalled = self._recall(view)
        if recalled is not None and number == len(self.points):
            best = _first_new(view, recalled.best, np.zeros(len(recalled.best)), view.tried, taken)
            if best is not None:
                return propose(view, recalled.best[best], number, searcher="forest", design="recalled")
        opened = opening(view, number, taken, self.points, searcher="forest")
        if opened is not None:
            return opened
        if recalled is not None and recalled.mixture is not None:
            rows = recalled.mixture.draw(rng(view.seed, "initial", number), _DRAWS)
            found = _first_new(view, rows, np.arange(float(len(rows))), view.tried, taken)
            if found is not None:
                return propose(view, rows[found], number, searcher="forest", design=self.transfer)
        # The low-discrepancy sequence starts in the middle of the space and moves outwards.
        place = from_the_middle(view, number, max(2 * view.space.dimension + 1, self._initial(view)), "halton")
        row = spread(view, place, taken, "halton")
        return propose(view, row, number, searcher="forest", design="halton")

    def _recall(self, view: SearchView) -> Recalled | None:
        if self.warm_start is None:
            return None
        recalled = view.memo.get(("recalled", self))
        if not isinstance(recalled, Recalled):
            experience = cast(Experience, self.warm_start)
            recalled = Recalled(experience, self.transfer, view.space, view.seed, view.objectives)
            view.memo["recalled", self] = recalled
        return recalled

    def _grown(self, view: SearchView) -> Forest:
        recalled = self._recall(view)
        ranks = None
        if recalled is not None and recalled.mixture is None:
            view, ranks = view.recalling(recalled.rows), recalled.ranks.T
        forest = view.memo.get(self)
        if not isinstance(forest, Forest) or forest.outdated(view):
            growth = Growth(
                trees=self.trees, scalarisation=self.scalarisation, weights=self.weights, max_rows=self.max_rows,
                leveled=True,
            )  # fmt: skip
            forest = view.memo[self] = Forest(growth, view, ranks)
        forest.update(view)
        return forest

    def _choose(
        self, view: SearchView, weights: Array, kappas: Array, numbers: Sequence[int], taken: set[bytes]
    ) -> Array:
        """Return for each kappa the row of least acquisition that is neither tried nor taken, after a local search."""
        recalled, moves = self._recall(view), _moves(view)
        forest = self._grown(view)
        old, y = np.split(forest.value(weights), [forest.count - view.count])
        good = _good(view, y)
        if recalled is not None and recalled.mixture is None:
            good = np.concatenate([good[:10], recalled.rows[_least(old, 10)]])
        count = max(self.candidates, _PER_PROPOSAL * len(numbers))
        draw = recalled.mixture.draw if recalled is not None and recalled.mixture is not None else None
        rows = moves.candidates(rng(view.seed, "candidates", numbers[0]), good, count, draw)
        mu, deviation, _ = forest.predict(_at_full_fidelity(view, rows))
        generator = rng(view.seed, "mutate", numbers[0])
        # A batch searches around the best rows for a few quantiles of its kappas, not for each of them.
        few = kappas if len(kappas) <= _APPETITES else np.quantile(kappas, np.linspace(0.0, 1.0, _APPETITES))
        # Local search: each round asks the neighbours of the best rows so far.
        for _ in range(_ROUNDS):
            starts = [_least(lower_confidence_bound(mu, deviation, kappa), _STARTS) for kappa in few.tolist()]
            places = starts[0] if len(starts) == 1 else np.unique(np.concatenate(starts))
            near = moves.neighbours(generator, rows[places], self.candidates * len(few))
            more = forest.predict(_at_full_fidelity(view, near))
            rows = np.concatenate([rows, near])
            mu, deviation = np.concatenate([mu, more[0]]), np.concatenate([deviation, more[1]])
        known = view.tried
        if self.pending == "ignore":
            known = known - set(view.space.row_keys(view.pending))
        if len(numbers) == 1:
            found = _first_new(view, rows, lower_confidence_bound(mu, deviation, float(kappas[0])), known, taken)
            return (rows[found] if found is not None else draw_new(view, numbers[0], taken, "last"))[None, :]
        # A batch takes the best row for each kappa in turn, among those that are neither tried nor taken.
        keys = view.space.row_keys(rows)
        fresh = {key: place for place, key in reversed([*enumerate(keys)]) if key not in known and key not in taken}
        places = np.sort(np.fromiter(fresh.values(), np.intp, len(fresh)))
        rows, mu, deviation = rows[places], mu[places], deviation[places]
        taken.update(fresh)  # what is drawn instead is none of them
        chosen = np.empty((len(numbers), view.space.dimension))
        gone = np.empty(min(len(numbers), len(rows)), np.intp)
        for place, kappa in enumerate(kappas[: len(gone)].tolist()):
            scores = lower_confidence_bound(mu, deviation, kappa)
            scores[gone[:place]] = np.inf
            gone[place] = np.argmin(scores)
        chosen[: len(gone)] = rows[gone]
        for place in range(len(gone), len(numbers)):
            chosen[place] = draw_new(view, numbers[place], taken, "last")
        return chosen


def _normalised(weights: Sequence[float]) -> tuple[float, ...]:
    """Return weights that sum to 1."""
    values = np.asarray(weights, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values) & (values >= 0.0)) or not values.sum() > 0:
        raise SearchError(
            f"ForestSearcher: weights must be numbers >= 0, one per objective and not all 0, got {weights!r}"
        )
    return tuple((values / values.sum()).tolist())


def _moves(view: SearchView) -> Moves:
    moves = view.memo.get("moves")
    if not isinstance(moves, Moves):
        moves = view.memo["moves"] = Moves(view.space)
    return moves


def _first_new(view: SearchView, rows: Array, scores: Array, known: set[bytes], taken: set[bytes]) -> int | None:
    """Return the place of the least score whose row is neither known nor taken, and take it; None if there is none."""
    for count in (1, 64, len(rows)):  # the first few nearly always hold a new one: no key of the rest is needed
        order = _least(scores, count)
        for place, key in zip(order.tolist(), view.space.row_keys(rows[order]), strict=True):
            if key not in known and key not in taken:
                taken.add(key)
                return int(place)
    return None


def _least(scores: Array, count: int) -> NDArray[np.intp]:
    """Return the places of the `count` least scores, least first, ties by place."""
    if count >= len(scores):
        return np.argsort(scores, kind="stable")
    if count == 1:
        return np.array([np.argmin(scores)])
    places = np.sort(np.argpartition(scores, count)[:count])
    return places[np.argsort(scores[places], kind="stable")]


def _good(view: SearchView, y: Array) -> Array:
    """Return the rows of the 20 best trials, best first."""
    order = _least(np.where(view.failed, np.inf, y), 20 * (view.top + 1))  # of which a trial has one a rung
    order = order[~view.failed[order]]
    _, first = np.unique(view.numbers[order], return_index=True)
    good: Array = view.rows[order[np.sort(first)[:20]]]
    return good


def _at_full_fidelity(view: SearchView, rows: Array) -> Array:
    M = np.ones((len(rows), view.space.dimension + 1))
    M[:, :-1] = view.space.model_matrix(rows)
    return M
