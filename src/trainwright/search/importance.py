"""Parameter importance: how much each parameter alone moves what a forest has learnt of the results.

Total-effect indices (Homma and Saltelli, 1996) of the forest's mean at the last epoch, by Jansen's estimator (1999):
E[(f(x) - f(x'))^2] / 2, where x' is x with one parameter drawn anew from the space; a parameter that switches others
off or on is credited with that. Losses count by their ranks, so that a few diverged trials do not decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SearchError
from trainwright.ledger import State, Status, TrialState
from trainwright.ledger.rows import final_metrics
from trainwright.randomness import rng
from trainwright.search._forest import Forest, Growth
from trainwright.search.view import View
from trainwright.space import Configuration, Space

__all__ = ["Importance", "importance_of"]

Array = NDArray[np.float64]

_LEAST, _MOST, _DRAWS, _FOLDS = 10, 600, 2000, 5
_GROWTH = Growth(
    trees=50,
    kind="extra",
    refit="always",
    scaler="quantile-uniform",
    failures="ignore",
    scalarisation="linear",
    weights=None,
    max_rows=10_000,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Importance:
    """Shares that sum to 1, by column of the space; `explained` says how far they may be believed."""

    names: tuple[str, ...]
    shares: tuple[float, ...]
    explained: float  # share of the variance of unseen results' ranks, at equal epochs; from 0 to 1
    results: int
    stopped: int  # of these, trials that were not complete

    @property
    def ordered(self) -> tuple[str, ...]:
        """The names, the most important first."""
        pairs = sorted(zip(self.shares, self.names, strict=True), key=lambda pair: -pair[0])
        return tuple(name for _, name in pairs)


def importance_of(state: State, space: Space, objective: int = 0) -> Importance:
    """Return the importance of the space's columns for one objective, from at most 600 results.

    Raises SearchError if there are too few results to say anything, or no parameter makes a difference.
    """
    trials = [trial for _, trial in sorted(state.trials.items()) if _loss(state, trial, objective) is not None]
    least = max(_LEAST, 2 * space.dimension)
    if len(trials) < least:
        raise SearchError(f"parameter importance: at least {least} results are needed; so far: {len(trials)}")
    if len(trials) > _MOST:
        trials = [trials[at] for at in np.linspace(0, len(trials) - 1, _MOST).astype(int)]
    view = _told(state, space, trials, objective)
    forest, targets = _fitted(view)
    effects = _effects(space, forest, view.seed)
    if not effects.sum() > 0:
        raise SearchError(f"parameter importance: no parameter makes a difference in {len(trials)} results")
    return Importance(
        names=tuple(column.name for column in space.columns),
        shares=tuple((effects / effects.sum()).tolist()),
        explained=_explained(state, trials, objective, view, targets),
        results=len(trials),
        stopped=sum(trial.status is not Status.COMPLETE for trial in trials),
    )


def _loss(state: State, trial: TrialState, objective: int) -> float | None:
    goal = state.objectives[objective]
    value = final_metrics(trial).get(goal.metric)
    loss = None if value is None else goal.loss(value)
    return loss if loss is not None and np.isfinite(loss) else None


def _told(state: State, space: Space, trials: Sequence[TrialState], objective: int) -> View:
    """Return the view of these trials alone: their ends, and their reports at up to three rungs."""
    goal = state.objectives[objective]
    epochs = max((trial.epoch for trial in trials), default=0) or None
    view = View(space, state.seed, epochs=epochs)
    for trial in trials:
        view.propose(trial.number, Configuration(params=trial.params, key=trial.key))
        for epoch in sorted(trial.reports):
            if goal.metric in trial.reports[epoch].metrics:
                view.report(trial.number, epoch, [goal.loss(trial.reports[epoch].metrics[goal.metric])])
        loss = _loss(state, trial, objective)
        last = trial.epoch or None
        complete = trial.status is Status.COMPLETE or last is None
        view.result(trial.number, None if loss is None else [loss], epoch=last, complete=complete)
    return view


def _fitted(view: View) -> tuple[Forest, Array]:
    forest = Forest(_GROWTH, view)
    forest.update(view)
    return forest, forest.value(np.ones(1))


def _effects(space: Space, forest: Forest, seed: int) -> Array:
    generator = rng(seed, "importance", 0)
    U, anew = space.latent(generator, _DRAWS), space.latent(generator, _DRAWS)
    before = _predicted(space, forest, space.settle(U), np.ones(_DRAWS))
    effects = np.empty(space.dimension)
    for column in range(space.dimension):
        changed = U.copy()
        changed[:, column] = anew[:, column]
        after = _predicted(space, forest, space.settle(changed), np.ones(_DRAWS))
        effects[column] = ((before - after) ** 2).mean() / 2
    return effects


def _predicted(space: Space, forest: Forest, rows: Array, progress: Array) -> Array:
    M = np.column_stack([space.model_matrix(rows), progress])
    return forest.predict(M)[0]


def _explained(state: State, trials: Sequence[TrialState], objective: int, view: View, targets: Array) -> float:
    """Return 1 - residual / variance of the targets, predicted for each fold by a forest of the others.

    The variance is that around the mean of rows of equal progress: that losses fall with epochs is no merit.
    """
    fold_of = {trial.number: place % _FOLDS for place, trial in enumerate(trials)}
    folds = np.array([fold_of[number] for number in view.numbers.tolist()])
    predicted = np.empty(view.count)
    for fold in range(_FOLDS):
        rest = [trial for trial in trials if fold_of[trial.number] != fold]
        forest, _ = _fitted(_told(state, view.space, rest, objective))
        rows = folds == fold
        predicted[rows] = _predicted(view.space, forest, view.rows[rows], view.progress[rows])
    residual, variance = 0.0, 0.0
    for z in np.unique(view.progress):
        rows = view.progress == z
        # Fold by fold the ranks are of slightly different rows, so the level is left out.
        off = (predicted - targets)[rows]
        residual += float(((off - off.mean()) ** 2).sum())
        variance += float(((targets[rows] - targets[rows].mean()) ** 2).sum())
    return max(0.0, 1.0 - residual / variance) if variance > 0 else 0.0
