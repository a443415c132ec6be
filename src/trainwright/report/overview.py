"""What every part of a report needs of a study, computed once: results as columns, their order, the clock."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainwright.ledger import Objective, State, Status, TrialState
from trainwright.ledger.objectives import Outcome
from trainwright.ledger.writers import state_counts
from trainwright.study.results import Results

__all__ = ["Clock", "Overview"]

_BREAK_SECONDS, _BREAK_SHARE = 60.0, 0.1


class Overview:
    """A study's trials in the order of their numbers, their results [trials, objectives], and who is best."""

    def __init__(self, state: State, under_way: Mapping[int, str] | None = None) -> None:
        """`under_way` has the words of the trials that are recorded as running, as `ledger.under_way` gives them."""
        self.state = state
        self.under_way = under_way or {}
        self.objectives: tuple[Objective, ...] = state.objectives
        self.trials: list[TrialState] = [state.trials[number] for number in sorted(state.trials)]
        found = self._found = Results.of(state)
        places = {trial.number: at for at, trial in enumerate(self.trials)}
        at = self._places = np.array([places[trial.number] for trial in found.trials], dtype=np.int64)
        # As losses, less is better in every objective; values are in the user's direction. Without a result: infinity,
        # and NaN.
        self.losses = np.full((len(self.trials), len(self.objectives)), np.inf)
        self.losses[at] = found.goals
        signs = np.array([1.0 if o.direction == "min" else -1.0 for o in self.objectives])
        self.values = np.where(np.isfinite(self.losses), self.losses * signs, np.nan)

    @cached_property
    def results(self) -> NDArray[np.int64]:
        """Positions of the trials with a finite value of every outcome, in the order in which they ended."""
        # In the order of ending, which is what a best-so-far line goes by.
        order = np.argsort([_end_time(trial) for trial in self._found.trials], kind="stable")
        return self._places[order]

    @cached_property
    def within(self) -> NDArray[np.bool_]:
        """True [trials] where a result keeps every bound and every constraint."""
        feasible = np.zeros(len(self.trials), dtype=np.bool_)
        feasible[self._places] = self._found.feasible
        return feasible

    @cached_property
    def limits(self) -> tuple[Outcome, ...]:
        """The objectives that have a bound, and the constraints."""
        return tuple(outcome for outcome in self.state.outcomes if math.isfinite(outcome.limit))

    @cached_property
    def front(self) -> NDArray[np.int64]:
        """Positions of the results that no other dominates, within the bounds if any result is, by first objective."""
        numbers = {trial.number for trial in self._found.front()}
        front = np.array([at for at, trial in enumerate(self.trials) if trial.number in numbers], dtype=np.int64)
        return front[np.lexsort((front, *self.losses[front].T[::-1]))]

    @cached_property
    def ranking(self) -> NDArray[np.int64]:
        """Positions of the results, best first: the front, then by mean rank; infeasible ones last."""
        if not len(self.results):
            return self.results
        found = np.sort(self.results)
        losses = self.losses[found]
        # Mean rank over the objectives makes no assumption about their units.
        places = np.argsort(np.argsort(losses, axis=0, kind="stable"), axis=0, kind="stable").mean(axis=1)
        behind = ~np.isin(found, self.front)
        return found[np.lexsort((found, places, behind, ~self.within[found]))]

    @property
    def best(self) -> TrialState | None:
        """The best trial of a study with one objective; of several, the first of the front."""
        return self.trials[self.ranking[0]] if len(self.results) else None

    @cached_property
    def epochs(self) -> int:
        """The highest epoch that any trial has reported."""
        return max((trial.epoch for trial in self.trials), default=0)

    @cached_property
    def rungs(self) -> list[int]:
        """The epochs at which promotion rules have decided."""
        return sorted({epoch for _, epoch in self.state.decisions})

    @cached_property
    def clock(self) -> "Clock":
        """Time since the first start, without breaks."""
        spans = [
            (lease.started_at, lease.ended_at or lease.started_at + lease.seconds)
            for trial in self.trials
            for lease in trial.leases.values()
            if lease.started_at is not None
        ]
        return Clock.of(np.array(spans, dtype=np.float64).reshape(len(spans), 2))

    def word(self, trial: TrialState) -> str:
        """Return the state of a trial as readers see it: one whose worker is not at work is lost or silent."""
        # The trial may have ended since the words were found.
        status = trial.status
        return self.under_way.get(trial.number, status.value) if status is Status.RUNNING else status.value

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many trials are in each state, by the words of `word`; states without any are left out."""
        return {word: count for word, count in state_counts(self.state, self.under_way).items() if count}

    @cached_property
    def failures(self) -> list[list[TrialState]]:
        """The trials that have failed, alike ones together, the most frequent failure first."""
        groups: dict[tuple[str, str], list[TrialState]] = defaultdict(list)
        for trial in self.trials:
            if trial.failure is not None:
                groups[trial.failure.kind, trial.failure.message].append(trial)
        return sorted(groups.values(), key=lambda trials: (-len(trials), trials[0].number))

    def select(self, places: Sequence[int]) -> "Overview":
        """Return an overview of some trials alone, by their positions; they are shared, not copied."""
        chosen = [self.trials[at] for at in places]
        counts = dict.fromkeys(map(str, Status), 0) | Counter(str(trial.status) for trial in chosen)
        state = replace(self.state, trials={trial.number: trial for trial in chosen}, counts=counts)
        return Overview(state, self.under_way)

    def count(self, *statuses: Status) -> int:
        """Return how many trials are in one of the statuses."""
        return sum(self.state.counts[status] for status in statuses)

    def drawn(self, most: int) -> list[int]:
        """Return the positions of at most `most` results, by number: the best third of them, then evenly many."""
        if len(self.results) <= most:
            return sorted(self.results.tolist())
        best = self.ranking[: most // 3]
        rest = np.sort(self.ranking[most // 3 :])
        even = rest[np.linspace(0, len(rest) - 1, most - len(best)).astype(np.int64)]
        return sorted({*best.tolist(), *even.tolist()})


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall time (s) to seconds of work: from the first start, without the breaks in which no trial ran.

    A break is longer than a minute and than a tenth of the busy time: the study was interrupted and taken up again.
    """

    starts: NDArray[np.float64]  # of the sessions, ascending
    ends: NDArray[np.float64]

    @classmethod
    def of(cls, spans: NDArray[np.float64]) -> "Clock":
        """Return the clock of spans of work [n, 2]: start and end."""
        if not len(spans):
            return cls(np.zeros(0), np.zeros(0))
        spans = spans[np.argsort(spans[:, 0], kind="stable")]
        # The latest end so far: a later start beyond it leaves a gap in which nothing ran.
        reach = np.maximum.accumulate(spans[:, 1])
        gaps = np.maximum(spans[1:, 0] - reach[:-1], 0.0)
        busy = reach[-1] - spans[0, 0] - gaps.sum()
        # Short gaps are part of the work, such as the start of a worker.
        breaks = np.flatnonzero(gaps > max(_BREAK_SECONDS, _BREAK_SHARE * busy))
        return cls(spans[np.concatenate([[0], breaks + 1]), 0], reach[np.concatenate([breaks, [len(spans) - 1]])])

    @property
    def total(self) -> float:
        """Seconds of work."""
        return float((self.ends - self.starts).sum())

    @property
    def breaks(self) -> NDArray[np.float64]:
        """Where the breaks were, in seconds of work."""
        return np.cumsum(self.ends - self.starts)[:-1]

    def seconds(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return seconds of work at wall times; a time within a break is at its start."""
        if not len(self.starts):
            return np.zeros(len(times))
        # Seconds of all earlier sessions, then those within the present one.
        before = np.concatenate([[0.0], np.cumsum(self.ends - self.starts)])
        session = np.maximum(np.searchsorted(self.starts, times, side="right") - 1, 0)
        inside = np.clip(times - self.starts[session], 0.0, self.ends[session] - self.starts[session])
        return np.asarray(before[session] + inside)


def _end_time(trial: TrialState) -> float:
    return trial.end.at if trial.end is not None else math.inf
