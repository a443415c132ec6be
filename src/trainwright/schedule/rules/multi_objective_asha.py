"""MultiObjectiveASHA: ASHA by non-dominated sorting and places in fronts (Schmucker et al., arXiv 2106.12639)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from trainwright.aliases import Array
from trainwright.errors import ScheduleError
from trainwright.pareto import ranks
from trainwright.schedule.rules.promotion_rule import Reported
from trainwright.schedule.rules.rung_rule import AsynchronousRule
from trainwright.schedule.rungs.rungs import RungTable

__all__ = ["MultiObjectiveASHA"]


@dataclass(slots=True)
class _FrontRung(RungTable):
    """Goes on: the best max(`least`, floor(n/eta)) by violation, front and place. O(n * front) each record."""

    eta: Fraction
    least: int
    losses: dict[int, tuple[float, ...]] = field(default_factory=dict)
    violations: dict[int, float] = field(default_factory=dict)
    best: list[int] = field(default_factory=list)  # trials that go on, in order
    waiting: set[int] = field(default_factory=set)

    def enter(self, event: Reported) -> tuple[bool, float | None]:
        """Record and rank anew; there is no loss that separates."""
        self.losses[event.trial] = event.losses
        self.violations[event.trial] = event.violation
        passing = max(self.least, len(self.losses) * self.eta.denominator // self.eta.numerator)
        self.best = self._rank_trials()[:passing]
        return event.trial in self.best, None

    def wait(self, event: Reported) -> None:
        """Add it to those that wait."""
        self.waiting.add(event.trial)

    def first(self, *, final: bool = False) -> int | None:
        """Return the first of the best that waits."""
        ranked = self._rank_trials() if final and self.waiting else self.best
        return next((trial for trial in ranked if trial in self.waiting), None)

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Forget who is gone."""
        self.waiting = {trial for trial in self.waiting if not gone(trial)}

    def _rank_trials(self) -> list[int]:
        trials = np.array(sorted(self.losses))
        losses = np.array([self.losses[trial] for trial in trials.tolist()])
        violations = np.array([self.violations[trial] for trial in trials.tolist()])
        # Objectives are scaled by rank, so that their units do not matter.
        scaled = np.column_stack([np.unique(column, return_inverse=True)[1] for column in losses.T]).astype(float)
        scaled /= np.maximum(scaled.max(axis=0), 1.0)
        place, front = np.zeros(len(trials)), np.zeros(len(trials), dtype=np.int64)
        # Fronts among feasible trials, places within each front; infeasible ones follow by violation.
        feasible = violations <= 0
        front[feasible] = ranks(losses[feasible])
        for level in np.unique(front[feasible]):
            members = np.flatnonzero((front == level) & feasible)
            place[members[order_by_spread(scaled[members])]] = np.arange(len(members))
        return [int(trial) for trial in trials[np.lexsort((trials, place, front, np.maximum(violations, 0.0)))]]


def order_by_spread(points: Array) -> list[int]:
    """Return the order of an epsilon net: the best in objective 0, then repeatedly the farthest from those chosen."""
    chosen = int(np.argmin(points[:, 0]))
    order, distances = [chosen], np.full(len(points), np.inf)
    while len(order) < len(points):
        # Repeatedly the point that is farthest from all chosen so far.
        squares = ((points - points[chosen]) ** 2).sum(axis=1)
        # Equal ones must not differ by how they were rounded.
        distances = np.minimum(distances, np.round(squares, 9))
        distances[chosen] = -1.0
        chosen = int(np.argmax(distances))
        order.append(chosen)
    return order


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiObjectiveASHA(AsynchronousRule):
    """ASHA whose rank in a rung is (front, place in the front); infeasible trials come last, by their violation.

    In a front the best in the first objective is first, then each time the trial farthest from those before it,
    objectives scaled by rank. `kind` as for ASHA. A report at a rung costs O(trials in the rung * front); others O(1).
    """

    def check(self, objectives: int, trials: int | None = None) -> None:  # noqa: ARG002 -- the protocol's arguments
        """Refuse a single objective, for which plain ASHA is exact and cheaper."""
        if objectives < 2:
            raise ScheduleError(
                f"MultiObjectiveASHA compares trials by several objectives, the study has {objectives}; "
                "give the study two or more, or use ASHA"
            )

    def make_table(self) -> RungTable:
        """Return an empty rung, which compares by fronts."""
        return _FrontRung(self._factor, 0 if self.promotes else 1)
