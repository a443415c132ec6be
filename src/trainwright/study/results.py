"""Computes the results of a study: feasible trials, best trial, Pareto front, hypervolume, and the trial to deploy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.errors import StudyError
from trainwright.ledger import State, TrialState
from trainwright.ledger.objectives import losses_of
from trainwright.pareto import (
    MOST_OBJECTIVES,
    dominates,
    hypervolume,
    non_dominated,
    ranks,
    reference_of,
)
from trainwright.search import SearchView
from trainwright.space import Space
from trainwright.study.projections import SearchProjection

__all__ = ["By", "Results", "Stretch", "first_reference", "lineage_of", "recommend_trial"]

By = Literal["estimate", "observed"]


class Stretch(NamedTuple):
    """The epochs `first` to `last` that were trained in one trial, with its parameters."""

    trial: int
    first: int
    last: int
    params: Mapping[str, Any]


def lineage_of(state: State, number: int) -> list[Stretch]:
    """Return the stretches of a trial's state: those of its own epochs, and before them of a clone's parents."""
    now, found = state.trials[number], []
    last = now.epoch
    while (begun := now.exploits) is not None and begun.parent < now.number:
        found.append(Stretch(now.number, begun.epoch + 1, last, now.params))
        now, last = state.trials[begun.parent], begun.epoch
    return [Stretch(now.number, 1, last, now.params), *reversed(found)]


@dataclass(frozen=True, slots=True)
class Results:
    """The trials with a finite value of every objective and constraint, by number, and their losses.

    A result is feasible if it keeps every bound and constraint; others count only where there is none.
    """

    state: State
    trials: list[TrialState]
    losses: Array  # [results, objectives and constraints]
    feasible: NDArray[np.bool_]

    @classmethod
    def of(cls, state: State) -> "Results":
        """Return the results of a study."""
        outcomes = state.outcomes
        trials, losses = [], []
        for number in sorted(state.trials):
            trial = state.trials[number]
            found = losses_of(outcomes, trial.values)
            if found is not None and np.isfinite(found).all():
                trials.append(trial)
                losses.append(found)
        columns = np.array(losses, dtype=np.float64).reshape(len(trials), len(outcomes))
        return cls(state, trials, columns, np.asarray((columns <= state.limits).all(axis=1)))

    @property
    def goals(self) -> Array:
        """Losses [results, objectives]."""
        return self.losses[:, : len(self.state.objectives)]

    def best(self) -> TrialState:
        """Return the feasible trial of least loss; raises `StudyError` where there is none, or many objectives."""
        objectives = self.state.objectives
        if len(objectives) > 1:
            names = ", ".join(map(str, objectives))
            raise StudyError(f"best: the study has {len(objectives)} objectives ({names}); use study.front")
        if not self.trials:
            raise StudyError(f"best: none of {len(self.state.trials)} trials has a result yet; look at study.trials")
        if not self.feasible.any():
            raise StudyError(f"best: {self.infeasible()}")
        return self.trials[int(np.argmin(np.where(self.feasible, self.losses[:, 0], np.inf)))]

    def infeasible(self) -> str:
        """Return the sentence that says that no result is feasible, and which comes nearest."""
        limits = [outcome for outcome in self.state.outcomes if np.isfinite(outcome.limit)]
        over = np.maximum(0.0, self.losses - self.state.limits)
        spread = np.ptp(self.losses, axis=0)
        # The distance from each limit in units of that outcome's spread, so that units do not matter.
        near = self.trials[int(np.argmin((over / np.where(spread > 0.0, spread, 1.0)).sum(axis=1)))]
        shown = ", ".join(f"{outcome.metric}={near.values[outcome.metric]:.6g}" for outcome in limits)
        wanted = ", ".join(map(str, limits))
        return f"none of {len(self.trials)} results keeps {wanted}; the nearest is trial {near.number} with {shown}"

    def front(self) -> list[TrialState]:
        """Return the trials that no other beats in every objective: of the feasible ones, if there are any."""
        # While nothing is feasible the front shows what is nearest to the goals all the same.
        pool = np.flatnonzero(self.feasible) if self.feasible.any() else np.arange(len(self.trials))
        return [self.trials[place] for place in pool[non_dominated(self.goals[pool])].tolist()]

    def ranks(self) -> dict[int, int]:
        """Return the Pareto rank of each result by trial number: 0 on the front, infeasible ones behind all others."""
        found = np.empty(len(self.trials), dtype=np.int64)
        found[self.feasible] = ranks(self.goals[self.feasible])
        behind = found[self.feasible].max(initial=-1) + 1
        found[~self.feasible] = behind + ranks(self.goals[~self.feasible])
        return {trial.number: rank for trial, rank in zip(self.trials, found.tolist(), strict=True)}

    def hypervolume(self) -> float:
        """Return the volume between the feasible front and the reference point; raises `StudyError` before it is."""
        return hypervolume(self.goals[self.feasible], self._find_reference())

    def hypervolume_over_time(self) -> list[tuple[int, float]]:
        """Return the number of each trial in the order in which they ended, and the hypervolume after it."""
        reference = self._find_reference()
        front, volume = np.empty((0, len(reference))), 0.0
        course = []
        ends = [trial.end.at if trial.end is not None else np.inf for trial in self.trials]
        for place in np.argsort(ends, kind="stable").tolist():
            goals = self.goals[place]
            # The volume is measured only when the front has moved.
            if self.feasible[place] and not dominates(front, goals).any():
                front = np.vstack([front[~dominates(goals, front)], goals])
                volume = max(volume, hypervolume(front, reference))
            course.append((self.trials[place].number, volume))
        return course

    def _find_reference(self) -> Array:
        objectives = self.state.objectives
        if len(objectives) == 1:
            raise StudyError(f"hypervolume: the study has one objective ({objectives[0]}); use study.best")
        if len(objectives) > MOST_OBJECTIVES:
            raise StudyError(
                f"hypervolume: the study has {len(objectives)} objectives; allowed: up to {MOST_OBJECTIVES}, beyond "
                "which it takes too long; use study.front"
            )
        values = self.state.reference or first_reference(self.state)
        if values is None:
            raise StudyError(
                f"hypervolume: its reference point is fixed after {_needed_results(self.state)} results, so far there "
                f"are {len(self.trials)}"
            )
        return np.array([objective.loss(values[objective.metric]) for objective in objectives])


def first_reference(state: State) -> dict[str, float] | None:
    """Return the reference point of the first results, in the user's units; None while there are too few.

    They are as many as two a parameter and one, by number: about an initial design.
    """
    needed = _needed_results(state)
    if state.results < needed:
        return None
    found = Results.of(state)
    if len(found.trials) < needed:
        return None
    worst = reference_of(found.goals[:needed]).tolist()
    return {
        objective.metric: loss if objective.direction == "min" else -loss
        for objective, loss in zip(state.objectives, worst, strict=True)
    }


def _needed_results(state: State) -> int:
    return 2 * len((state.space or {}).get("parameters", ())) + 1


def recommend_trial(state: State, space: Space, by: By) -> TrialState:
    """Return the feasible trial of best estimated or best observed loss; raises as `Results.best` does."""
    if by not in get_args(By):
        raise StudyError(f"recommend: by must be 'estimate' or 'observed', got {by!r}")
    results = Results.of(state)
    # Raises where no result is feasible.
    best = results.best()
    if by == "observed":
        return best
    from trainwright.search.bayes.estimate import Estimate

    # The estimate smooths over noise: the best of many noisy results is the luckiest one.
    view = SearchView(space, state.seed, bounds=state.limits)
    SearchProjection(view, state.outcomes).catch_up(state.trials)
    feasible = np.flatnonzero(results.feasible)
    rows = np.array([space.encode(results.trials[place].params) for place in feasible.tolist()])
    means = Estimate.of(view).predict(rows)[0]
    return results.trials[int(feasible[np.lexsort((results.losses[feasible, 0], means))[0]])]
