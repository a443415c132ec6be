"""Bayesian optimisation with a forest of extremely randomised trees, in milliseconds per proposal.

Trees: Geurts et al., Machine Learning 63 (2006). A confidence bound on the epistemic variance with a kappa that decays
periodically, and batches with exponential kappas (qUCBd): Égelé et al., arXiv 2207.00479. Several objectives by a
random linear scalarisation for each trial (D-MoBO): arXiv 2309.14936.

What an ask must do, for n rows, T = 10 trees, d = 10 columns: draw and settle 1,000 + 2 * 385 rows (about 0.5 ms of
array work, whatever n), walk each down T trees of depth about 2 ln n (230,000 steps at n = 1,000, some 2.5 ns each
while a tree stays in cache: 0.6 ms), and average n targets into the leaves of T trees (T n additions: 0.03 ms at 1,000,
0.4 ms at 10,000). Replanting, O(n d log n), falls on one tree every n / 100 trials. Making, checking and naming one
configuration costs another 0.2 ms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SearchError
from trainwright.randomness import rng
from trainwright.search._candidates import Moves
from trainwright.search._forest import Forest, Growth, simplex
from trainwright.search._searcher import draw_new, opening, propose
from trainwright.search.quasirandom import from_the_middle, spread
from trainwright.search.view import View
from trainwright.space import Configuration

__all__ = ["ForestSearcher"]

Array = NDArray[np.float64]
Beliefs = tuple[Array, Array]

_ROUNDS = 2  # of local search around the best candidates
_STARTS = 5  # rows whose neighbours a round asks
_WORDS = {
    "kind": ("extra", "bagging", "forest", "subspace"),
    "refit": ("grow", "always"),
    "acquisition": ("UCBd", "UCB"),
    "pending": ("exclude", "proximity", "ignore"),
    "design": ("halton", "sobol", "random"),
    "scaler": ("quantile-uniform", "minmax"),
    "failures": ("worst", "mean", "ignore"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ForestSearcher:
    """Propose where mean - kappa * deviation over the trees is least; the default searcher.

    Handles conditions, requirements, several objectives, intermediate values (as a column z, asked at z = 1), failures
    and any number of pending trials. An ask costs about O(trees * (rows + candidates * depth)).
    """

    trees: int = 10
    kind: Literal["extra", "bagging", "forest", "subspace"] = "extra"  # extra: random cuts; the others: best cuts
    refit: Literal["grow", "always"] = "grow"  # grow: rows extend trees, each is replanted per 10 % more; always: slow
    acquisition: Literal["UCBd", "UCB"] = "UCBd"  # UCBd: spread of the trees' means; UCB: with the leaves' variance too
    kappa: float = 1.96  # at the start of each period
    kappa_final: float = 0.01  # towards which it decays, by a constant factor per trial
    period: int = 10  # trials
    pending: Literal["exclude", "proximity", "ignore"] = "exclude"  # proximity: less deviation near pending trials
    initial: int | None = None  # results before the forest is asked; None = columns + 1, at most half of all trials
    design: Literal["halton", "sobol", "random"] = "halton"  # of the first trials; sequences from the middle out
    points: Sequence[Mapping[str, Any]] = field(default=(), hash=False)  # configurations to try first
    candidates: int = 1000  # rows asked before the local search
    delta: float = 0.0  # least weighted variance drop of a split, of targets in [0, 1]
    patience: int = 10  # finished trials without a new best after which delta shrinks to a fifth
    scaler: Literal["quantile-uniform", "minmax"] = "quantile-uniform"  # of losses clipped at Q3 + 1.5 IQR
    failures: Literal["worst", "mean", "ignore"] = "worst"  # the target of a failed trial
    max_rows: int = 10_000  # per tree: the best, the newest, and a sample of the rest

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                allowed = ", ".join(map(repr, words))
                raise SearchError(f"ForestSearcher: {name} must be one of {allowed}, got {getattr(self, name)!r}")
        for name, least in (("trees", 1), ("period", 1), ("initial", 0), ("candidates", 8), ("patience", 1)):
            value = getattr(self, name)
            if (value is not None or name != "initial") and (not isinstance(value, int) or value < least):
                raise SearchError(f"ForestSearcher: {name} must be an integer >= {least}, got {value!r}")
        if not isinstance(self.max_rows, int) or self.max_rows < 10:
            raise SearchError(f"ForestSearcher: max_rows must be an integer >= 10, got {self.max_rows!r}")
        if not 0.0 < self.kappa_final <= self.kappa < float("inf"):
            raise SearchError(
                f"ForestSearcher: 0 < kappa_final <= kappa is needed, got {self.kappa_final!r} and {self.kappa!r}; "
                "give both the same value for a constant kappa"
            )
        if not 0.0 <= self.delta < float("inf"):
            raise SearchError(f"ForestSearcher: delta must be a number >= 0, got {self.delta!r}")

    def ask(self, view: View, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number: the initial design, then the forest's choice.

        A batch shares forest and candidates; its first trial has the kappa of its number, the others draw theirs from
        an exponential law of that mean.
        """
        taken: set[bytes] = set()
        if view.count_results < max(1, self._initial(view)):
            return [self._design(view, number, taken) for number in numbers]
        forest = self._grown(view)
        weights = simplex(rng(view.seed, "weights", numbers[0]), view.objectives)
        generator = rng(view.seed, "candidates", numbers[0])
        rows = _moves(view).candidates(generator, _good(view, forest.value(weights)), self.candidates)
        beliefs = self._believe(view, forest, rows)
        mean_kappa = self._kappa(view, numbers[0])
        proposals = []
        for number in numbers:
            kappa = mean_kappa
            if number != numbers[0]:
                kappa *= float(rng(view.seed, "kappa", number).standard_exponential())
            row = self._choose(view, forest, rows, beliefs, kappa=kappa, number=number, taken=taken)
            mix = {"weights": weights.tolist()} if view.objectives > 1 else {}
            proposals.append(propose(view, row, number, searcher="forest", kappa=kappa, **mix))
        return proposals

    def _initial(self, view: View) -> int:
        if self.initial is not None:
            return self.initial
        most = view.space.dimension + 1
        return most if view.trials is None else min(most, max(1, view.trials // 2))

    def _kappa(self, view: View, number: int) -> float:
        turn = (number - self._initial(view)) % self.period / self.period
        kappa = float(self.kappa * (self.kappa_final / self.kappa) ** turn)
        if view.slot is not None:  # each worker its own appetite for the unknown, of the same mean
            kappa *= float(-np.log1p(-rng(view.seed, "kappa-slot", view.slot).random()))
        return kappa

    def _design(self, view: View, number: int, taken: set[bytes]) -> Configuration:
        given = opening(view, number, taken, self.points, searcher="forest")
        if given is not None:
            return given
        if self.design == "random":
            row = draw_new(view, number, taken, "initial")
        else:
            place = from_the_middle(view, number, max(2 * view.space.dimension + 1, self._initial(view)), self.design)
            row = spread(view, place, taken, self.design)
        return propose(view, row, number, searcher="forest", design=self.design)

    def _grown(self, view: View) -> Forest:
        forest = view.memo.get(self)
        if not isinstance(forest, Forest) or forest.outdated(view):
            growth = Growth(
                trees=self.trees, kind=self.kind, refit=self.refit, scaler=self.scaler, failures=self.failures,
                delta=self.delta, patience=self.patience, max_rows=self.max_rows,
            )  # fmt: skip
            forest = view.memo[self] = Forest(growth, view)
        forest.update(view)
        return forest

    def _choose(
        self, view: View, forest: Forest, rows: Array, beliefs: Beliefs, *, kappa: float, number: int, taken: set[bytes]
    ) -> Array:
        """Return the row of least acquisition that is neither tried nor taken, after a local search."""
        generator = rng(view.seed, "mutate", number)
        scores = beliefs[0] - kappa * beliefs[1]
        for _ in range(_ROUNDS):
            near = _moves(view).neighbours(generator, rows[_least(scores, _STARTS)], self.candidates)
            mu, deviation = self._believe(view, forest, near)
            rows = np.concatenate([rows, near])
            scores = np.concatenate([scores, mu - kappa * deviation])
        known = view.tried
        if self.pending == "ignore":
            known = known - set(view.space.row_keys(view.pending))
        for count in (64, len(rows)):  # the first few nearly always hold a new one: no key of the rest is needed
            order = _least(scores, count)
            for place, key in zip(order, view.space.row_keys(rows[order]), strict=True):
                if key not in known and key not in taken:
                    taken.add(key)
                    found: Array = rows[place]
                    return found
        return draw_new(view, number, taken, "last")

    def _believe(self, view: View, forest: Forest, rows: Array) -> Beliefs:
        """Return mean and deviation of the target of each row."""
        mu, deviation, leaves = forest.predict(_at_full_fidelity(view, rows))
        if self.pending == "proximity" and len(view.pending):
            theirs = forest.predict(_at_full_fidelity(view, view.pending))[2]
            shared = (leaves[:, :, None] == theirs[:, None, :]).mean(axis=0).max(axis=1)
            deviation = deviation * np.sqrt(1.0 - shared)
        if self.acquisition == "UCB":
            deviation = np.sqrt(deviation**2 + forest.aleatoric(leaves))
        return mu, deviation


def _moves(view: View) -> Moves:
    moves = view.memo.get("moves")
    if not isinstance(moves, Moves):
        moves = view.memo["moves"] = Moves(view.space)
    return moves


def _least(scores: Array, count: int) -> NDArray[np.intp]:
    """Return the places of the `count` least scores, least first, ties by place."""
    if count >= len(scores):
        return np.argsort(scores, kind="stable")
    places = np.sort(np.argpartition(scores, count)[:count])
    return places[np.argsort(scores[places], kind="stable")]


def _good(view: View, y: Array) -> Array:
    """Return the rows of the 20 best trials, best first."""
    order = _least(np.where(view.failed, np.inf, y), 80)  # a trial has at most four rows
    order = order[~view.failed[order]]
    _, first = np.unique(view.numbers[order], return_index=True)
    good: Array = view.rows[order[np.sort(first)[:20]]]
    return good


def _at_full_fidelity(view: View, rows: Array) -> Array:
    M = np.ones((len(rows), view.space.dimension + 1))
    M[:, :-1] = view.space.model_matrix(rows)
    return M
