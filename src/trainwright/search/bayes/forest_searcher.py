"""Bayesian optimisation with a forest of extremely randomised trees, in milliseconds per proposal.

Trees: Geurts et al., Machine Learning 63 (2006). A confidence bound on the epistemic variance with a kappa that decays
periodically, and batches with exponential kappas (qUCBd): Égelé et al., arXiv 2207.00479. Several objectives by
dominance (see `_dominance`), or by a random scalarisation for each trial (D-MoBO): arXiv 2309.14936. Plain asynchronous
UCB (schedule="constant", pending="ignore"): arXiv 2603.13501. What earlier studies teach: see `transfer`.

What an ask must do, for n rows, T = 10 trees, d = 10 columns: draw and settle 1,000 + 2 * 385 rows (about 0.5 ms of
array work, whatever n), walk each down T trees of depth about 2 ln n (230,000 steps at n = 1,000, some 2.5 ns each
while a tree stays in cache: 0.6 ms), and average n targets into the leaves of T trees (T n additions: 0.03 ms at 1,000,
0.4 ms at 10,000). Replanting, O(n d log n), falls on one tree every n / 100 trials. Making, checking and naming one
configuration costs another 0.2 ms.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SearchError
from trainwright.randomness import rng
from trainwright.search.bayes.acquisition import ACQUISITIONS, APPETITES, SCHEDULES, Acquisition, Schedule
from trainwright.search.bayes.candidates import Moves
from trainwright.search.bayes.forest_model import Failures, Forest, Growth, Kind, Refit, Scaler, Target
from trainwright.search.bayes.scalarisation import simplex
from trainwright.search.quasirandom import from_the_middle, spread
from trainwright.search.searcher import draw_new, opening, propose
from trainwright.search.transfer import EarlierStudy, Experience, Recalled, Transfer
from trainwright.search.view import SearchView
from trainwright.space import Configuration

__all__ = ["ForestSearcher"]

Array = NDArray[np.float64]
Pending = Literal["exclude", "proximity", "ignore", "liar-min", "liar-mean", "liar-max"]
Design = Literal["halton", "sobol", "random"]

_ROUNDS = 2  # of local search around the best candidates
_STARTS = 5  # rows whose neighbours a round asks, for each appetite
_APPETITES = 8  # of a batch, whose best rows a round starts from
_PER_PROPOSAL = 4  # candidates at least, in a batch
_DRAWS = 16  # of a mixture, of which the first new one is taken
_LIES: dict[str, Callable[..., Array]] = {"liar-min": np.min, "liar-mean": np.mean, "liar-max": np.max}
_WORDS = {
    "kind": get_args(Kind),
    "refit": get_args(Refit),
    "acquisition": get_args(Acquisition),
    "schedule": get_args(Schedule),
    "pending": get_args(Pending),
    "design": get_args(Design),
    "scaler": get_args(Scaler),
    "failures": get_args(Failures),
    "scalarisation": get_args(Target),
    "transfer": get_args(Transfer),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ForestSearcher:
    """Propose where the acquisition over the trees is least, by default mean - kappa * deviation; the default searcher.

    Handles conditions, requirements, several objectives, bounds and constraints, intermediate values (as a column z,
    asked at z = 1), failures and any number of pending trials. An ask costs about
    O(trees * (rows + candidates * depth)).
    """

    trees: int = 10
    kind: Kind = "extra"  # extra: random cuts; bagging, forest, subspace: best cuts
    refit: Refit = "grow"  # grow: rows extend trees, each is replanted per 10 % more; always: slow
    acquisition: Acquisition = "UCBd"  # with d: the spread of the trees' means alone; without: the leaves' variance too
    kappa: float | None = None  # at the start of each period: None = 1.96, and for EI and PI a margin of 0.1
    kappa_final: float | None = None  # towards which it decays: None = 0.01, and for EI and PI 0.0001
    schedule: Schedule = "periodic"  # by a constant factor per trial, then anew; constant; bandit: grows slowly
    period: int = 10  # trials
    pending: Pending = "exclude"  # proximity: less deviation near pending trials; liar: they count as told, slow
    initial: int | None = None  # results before the forest is asked; None = columns + 1, at most half of all trials
    design: Design = "halton"  # of the first trials; sequences from the middle out
    points: Sequence[Mapping[str, Any]] = field(default=(), hash=False)  # configurations to try first
    candidates: int = 1000  # rows asked before the local search
    scaler: Scaler = "quantile-uniform"  # of losses clipped at Q3 + 1.5 IQR
    failures: Failures = "worst"  # the target of a failed trial
    scalarisation: Target = "dominance"  # of several objectives: how many dominate a trial; or a weighted form
    weights: tuple[float, ...] | None = None  # of the objectives in a weighted form; None = drawn for each trial
    max_rows: int = 10_000  # per tree: the best, the newest, and a sample of the rest
    warm_start: EarlierStudy | Experience | Mapping[str, Any] | str | Path | None = field(default=None, hash=False)
    transfer: Transfer = "surrogate"  # its trials are told; generative: its best make candidates; priors: its best one

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                allowed = ", ".join(map(repr, words))
                raise SearchError(f"ForestSearcher: {name} must be one of {allowed}, got {getattr(self, name)!r}")
        for name, least in (("trees", 1), ("period", 1), ("initial", 0), ("candidates", 8)):
            value = getattr(self, name)
            if (value is not None or name != "initial") and (not isinstance(value, int) or value < least):
                raise SearchError(f"ForestSearcher: {name} must be an integer >= {least}, got {value!r}")
        if not isinstance(self.max_rows, int) or self.max_rows < 10:
            raise SearchError(f"ForestSearcher: max_rows must be an integer >= 10, got {self.max_rows!r}")
        start, final = self._appetites
        if not 0.0 < final <= start < float("inf"):
            raise SearchError(
                f"ForestSearcher: 0 < kappa_final <= kappa is needed, got {final!r} and {start!r}; "
                "for a kappa that stays write schedule='constant'"
            )
        if self.weights is not None:
            object.__setattr__(self, "weights", _checked(self.weights))
            if self.scalarisation == "dominance" and len(self.weights or ()) > 1:
                raise SearchError(
                    f"ForestSearcher: weights={self.weights!r} need a form that weighs, scalarisation='dominance' "
                    "does not; give scalarisation='linear' or 'augmented' too"
                )
        if self.warm_start is not None:  # read once, so that what comes to that study later changes nothing here
            object.__setattr__(self, "warm_start", Experience.of(self.warm_start, self.transfer))

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number: the initial design, then the forest's choice.

        A batch shares forest and candidates; its first trial has the kappa of its number, the others draw theirs from
        an exponential law of that mean.
        """
        taken: set[bytes] = set()
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
        if self.pending in _LIES:
            return self._lie(view, numbers)
        first = numbers[0]
        weights = self._weigh(view, first)
        kappas = np.full(len(numbers), self._kappa(view, first))
        for place, number in enumerate(numbers[1:], start=1):
            kappas[place] *= rng(view.seed, "kappa", number).standard_exponential()
        rows = self._choose(view, weights, kappas, numbers, taken)
        mix = {"weights": weights.tolist()} if len(weights) > 1 else {}
        return [
            replace(found, number=number, origin={"searcher": "forest", "kappa": kappa, **mix})
            for found, number, kappa in zip(view.space.configurations(rows), numbers, kappas.tolist(), strict=True)
        ]

    def learn(self, view: SearchView) -> None:
        """Grow the forest by what was told since: the next proposal then costs less, and is the same."""
        if view.count_results >= max(1, self._initial(view)) and self.pending not in _LIES:
            self._grown(view)

    def _initial(self, view: SearchView) -> int:
        if self.initial is not None:
            return self.initial
        most = view.space.dimension + 1
        return most if view.trials is None else min(most, max(1, view.trials // 2))

    @property
    def _appetites(self) -> tuple[float, float]:
        """The kappas (of EI and PI the margins) at the start and the end of a period."""
        start, final = APPETITES[self.acquisition.removesuffix("d")]
        return self.kappa if self.kappa is not None else start, (
            self.kappa_final if self.kappa_final is not None else final
        )

    def _kappa(self, view: SearchView, number: int) -> float:
        start, final = self._appetites
        at = number - self._initial(view)
        kappa = SCHEDULES[self.schedule](at, start, final, self.period, view.space.dimension)
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
        given = opening(view, number, taken, self.points, searcher="forest")
        if given is not None:
            return given
        if recalled is not None and recalled.mixture is not None:
            rows = recalled.mixture.draw(rng(view.seed, "initial", number), _DRAWS)
            found = _first_new(view, rows, np.arange(float(len(rows))), view.tried, taken)
            if found is not None:
                return propose(view, rows[found], number, searcher="forest", design=self.transfer)
        if self.design == "random":
            row = draw_new(view, number, taken, "initial")
        else:
            place = from_the_middle(view, number, max(2 * view.space.dimension + 1, self._initial(view)), self.design)
            row = spread(view, place, taken, self.design)
        return propose(view, row, number, searcher="forest", design=self.design)

    def _lie(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return proposals one by one, each by a new forest that takes what is pending for told."""
        told = view.outcomes[~view.failed & view.complete]
        honest = replace(self, pending="exclude")
        if not len(told):
            return honest.ask(view, numbers)
        lie = _LIES[self.pending](told, axis=0)
        rows = list(view.pending)
        proposals = []
        for number in numbers:
            proposals += honest.ask(view.supposing(np.array(rows).reshape(-1, view.space.dimension), lie), [number])
            rows.append(view.space.encode(proposals[-1].params))
        return proposals

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
                trees=self.trees, kind=self.kind, refit=self.refit, scaler=self.scaler, failures=self.failures,
                scalarisation=self.scalarisation, weights=self.weights, max_rows=self.max_rows,
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
        acquire = ACQUISITIONS[self.acquisition.removesuffix("d")]
        best = _best(view, y) if view.count_results else float(old.min())
        good = _good(view, y)
        if recalled is not None and recalled.mixture is None:
            good = np.concatenate([good[:10], recalled.rows[_least(old, 10)]])
        count = max(self.candidates, _PER_PROPOSAL * len(numbers))
        draw = recalled.mixture.draw if recalled is not None and recalled.mixture is not None else None
        rows = moves.candidates(rng(view.seed, "candidates", numbers[0]), good, count, draw)
        mu, deviation = self._believe(view, forest, rows)
        generator = rng(view.seed, "mutate", numbers[0])
        few = kappas if len(kappas) <= _APPETITES else np.quantile(kappas, np.linspace(0.0, 1.0, _APPETITES))
        for _ in range(_ROUNDS):
            starts = [_least(acquire(mu, deviation, kappa, best), _STARTS) for kappa in few.tolist()]
            places = starts[0] if len(starts) == 1 else np.unique(np.concatenate(starts))
            near = moves.neighbours(generator, rows[places], self.candidates * len(few))
            more = self._believe(view, forest, near)
            rows = np.concatenate([rows, near])
            mu, deviation = np.concatenate([mu, more[0]]), np.concatenate([deviation, more[1]])
        known = view.tried
        if self.pending == "ignore":
            known = known - set(view.space.row_keys(view.pending))
        if len(numbers) == 1:
            found = _first_new(view, rows, acquire(mu, deviation, float(kappas[0]), best), known, taken)
            return (rows[found] if found is not None else draw_new(view, numbers[0], taken, "last"))[None, :]
        keys = view.space.row_keys(rows)
        fresh = {key: place for place, key in reversed([*enumerate(keys)]) if key not in known and key not in taken}
        places = np.sort(np.fromiter(fresh.values(), np.intp, len(fresh)))
        rows, mu, deviation = rows[places], mu[places], deviation[places]
        taken.update(fresh)  # what is drawn instead is none of them
        chosen = np.empty((len(numbers), view.space.dimension))
        gone = np.empty(min(len(numbers), len(rows)), np.intp)
        for place, kappa in enumerate(kappas[: len(gone)].tolist()):
            scores = acquire(mu, deviation, kappa, best)
            scores[gone[:place]] = np.inf
            gone[place] = np.argmin(scores)
        chosen[: len(gone)] = rows[gone]
        for place in range(len(gone), len(numbers)):
            chosen[place] = draw_new(view, numbers[place], taken, "last")
        return chosen

    def _believe(self, view: SearchView, forest: Forest, rows: Array) -> tuple[Array, Array]:
        """Return mean and deviation of the target of each row."""
        mu, deviation, leaves = forest.predict(_at_full_fidelity(view, rows))
        if self.pending == "proximity" and len(view.pending):
            theirs = forest.predict(_at_full_fidelity(view, view.pending))[2]
            shared = (leaves[:, :, None] == theirs[:, None, :]).mean(axis=0).max(axis=1)
            deviation = deviation * np.sqrt(1.0 - shared)
        if not self.acquisition.endswith("d"):
            deviation = np.sqrt(deviation**2 + forest.aleatoric(leaves))
        return mu, deviation


def _checked(weights: Sequence[float]) -> tuple[float, ...]:
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


def _best(view: SearchView, y: Array) -> float:
    """Return the least target of a trial's end, or of any row if none has ended well."""
    told = ~view.failed
    ended = told & view.complete
    return float(y[ended if ended.any() else told].min())


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
