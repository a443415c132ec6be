"""Selection while the search runs: a newcomer is scored at each step of the run so far, and changes it only if it wins.

Exact: the picks are those of a run from nothing. Cost of a newcomer: O(K N) for K steps, unless it enters at step j,
from where the run is done again, or is the best single member under a price, which changes every scale.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainwright.ensemble.candidates import Candidates, TrueClassScorer
from trainwright.ensemble.greedy import BudgetedGreedy, Selection, Step, columns_of, ranked
from trainwright.ensemble.metrics import METRICS, Array
from trainwright.errors import CostError, EnsembleError

__all__ = ["OnlineSelector"]


class OnlineSelector:
    """The greedy ensemble, by cross-entropy, of the members seen so far; `add` takes one more."""

    def __init__(self, settings: BudgetedGreedy | None = None) -> None:
        self.settings = settings or BudgetedGreedy()
        if self.settings.sorted_start:
            raise EnsembleError(
                f"OnlineSelector: got sorted_start={self.settings.sorted_start}; allowed: 0; a newcomer among the best "
                "would change every step"
            )
        self._candidates: Candidates | None = None
        self._scorer: TrueClassScorer | None = None
        self._steps: Sequence[Step] = ()
        self._best = -1

    def add(self, trial: int, true: Array, *, seconds: float | None = None, size: float | None = None) -> bool:
        """Take a member's probability of the true class [N] and costs; return whether the selection has changed."""
        before = self.weights
        self._append(trial, np.asarray(true, dtype=np.float32), seconds, size)
        candidates, scorer = self._known()
        if not self._affordable(candidates):
            return False
        best = int(ranked(candidates, scorer)[0])
        priced = self.settings.cost_weight > 0 or self.settings.bytes_weight > 0
        start = 0 if priced and best != self._best else self._first_win(len(candidates) - 1)
        self._best = best
        if start is None:
            return False
        self._steps = self.settings.run(candidates, scorer, start=self._steps[:start]).steps
        return self.weights != before

    @property
    def weights(self) -> dict[int, float]:
        """Weight of each trial in the ensemble; they sum to 1; empty while no member keeps the budgets."""
        if not self._steps:
            return {}
        candidates, _ = self._known()
        chosen = Selection.of(self._steps)
        return {int(candidates.trials[index]): weight for index, weight in chosen.weights.items()}

    @property
    def loss(self) -> float:
        """The ensemble's loss on the rows of the selection."""
        if not self._steps:
            raise EnsembleError("OnlineSelector.loss: got no member within the budgets; allowed: at least one")
        return self._steps[Selection.of(self._steps).length - 1].loss

    def _append(self, trial: int, true: Array, seconds: float | None, size: float | None) -> None:
        old = self._candidates
        if old is None or self._scorer is None:
            targets = np.zeros(len(true), dtype=np.int32)  # their probabilities say all
            self._candidates = Candidates(
                trials=np.array([trial]),
                targets=targets,
                true=true[None],
                seconds=None if seconds is None else np.array([seconds]),
                sizes=None if size is None else np.array([float(size)]),
            )
            self._scorer = TrueClassScorer(self._candidates, METRICS["cross_entropy"])
            return
        if trial in old.trials:
            raise EnsembleError(f"OnlineSelector.add: got trial {trial} twice; allowed: each trial once")
        if len(true) != len(old.targets):
            raise EnsembleError(
                f"OnlineSelector.add: got {len(true)} rows of trial {trial}; allowed: {len(old.targets)}, as before"
            )
        self._candidates = replace(
            old,
            trials=np.append(old.trials, trial),
            true=None,  # the rows themselves are the scorer's
            seconds=_grown(old.seconds, seconds, "seconds", trial),
            sizes=_grown(old.sizes, size, "size", trial),
        )
        self._scorer.append(self._candidates, true)

    def _known(self) -> tuple[Candidates, TrueClassScorer]:
        if self._candidates is None or self._scorer is None:
            raise EnsembleError("OnlineSelector: got no member yet; allowed: at least one")
        return self._candidates, self._scorer

    def _affordable(self, candidates: Candidates) -> bool:
        return any(self.settings.admits(candidates, (one,)) for one in range(len(candidates)))

    def _first_win(self, newcomer: int) -> int | None:
        """Return the first step at which the newcomer would have been picked, None if it is at none."""
        candidates, scorer = self._known()
        objective_of = self.settings.objective(candidates, scorer)
        seconds, _ = columns_of(candidates)
        picks: tuple[int, ...] = ()
        for place, step in enumerate(self._steps):
            if self.settings.admits(candidates, (*picks, newcomer)):
                keys = []
                for one in (newcomer, step.index):
                    cost, size = self._costs((*picks, one))
                    objective = objective_of(scorer.losses(picks, np.array([one])), np.array([cost]), np.array([size]))
                    keys.append((float(objective.round(12)[0]), one not in picks, seconds[one], candidates.trials[one]))
                if keys[0] < keys[1]:
                    return place
            picks = (*picks, step.index)
        # A run that ended early for want of an allowed member may go on with this one.
        if len(self._steps) < self.settings.max_additions and self.settings.admits(candidates, (*picks, newcomer)):
            return len(self._steps)
        return None

    def _costs(self, picks: tuple[int, ...]) -> tuple[float, float]:
        seconds, sizes = columns_of(self._known()[0])
        cost = size = 0.0
        for place, one in enumerate(picks):  # in the order of picking, as a run adds them
            if one not in picks[:place]:
                cost, size = cost + float(seconds[one]), size + float(sizes[one])
        return cost, size


def _grown(column: Array | None, value: float | None, name: str, trial: int) -> Array | None:
    if (column is None) != (value is None):
        raise CostError(
            f"OnlineSelector.add: got {name} of trial {trial} or of those before, not both; allowed: of all or of none"
        )
    return None if column is None or value is None else np.append(column, float(value))
