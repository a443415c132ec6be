"""Greedy forward selection of an ensemble's members (Caruana), with replacement, within budgets.

With no cost weight and no budget it is, step for step, Caruana, Niculescu-Mizil, Crew, Ksikes: "Ensemble selection from
libraries of models", ICML 2004. Seconds and bytes count each member once: repeats only change weights.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.ensemble.selection.candidates import Candidates, Indices, Picks, Scorer, prior_loss
from trainwright.errors import CostError, EnsembleError
from trainwright.settings import Settings
from trainwright.validators import integer, number, optional

__all__ = ["BudgetedGreedy", "GreedyStep", "Selection", "cost_columns", "find_baselines", "rank_members", "rank_top"]

_WEIGHTS = (0.0, *np.logspace(-3, 1, 13).tolist())
_BYTES_WEIGHTS = (1e-2, 1e-1, 1.0, 10.0)
_BUDGETS = (8.0, 4.0, 2.0, 1.0)  # multiples of the best single member's seconds
_LARGEST_TOP = 8  # k of top-k


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyStep:
    """One addition: the candidate picked, and loss and objective of all picks up to it."""

    index: int
    loss: float
    objective: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """A finished run: every step, and how many of the first steps make the result."""

    steps: tuple[GreedyStep, ...]
    length: int

    @classmethod
    def of(cls, steps: Sequence[GreedyStep]) -> "Selection":
        """Return steps, at least one, with their best prefix."""
        least = min(range(len(steps)), key=lambda step: (round(steps[step].objective, 12), step))
        return cls(steps=tuple(steps), length=least + 1)

    @property
    def picks(self) -> Picks:
        """Indices of the candidates of the result, in the order of picking."""
        return tuple(step.index for step in self.steps[: self.length])


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetedGreedy(Settings, error=EnsembleError):
    """Add, again and again, the member for which loss / loss0 + w seconds / seconds0 + v bytes / bytes0 is least.

    The scales are those of the best single member. Ties go to a member already in, the cheaper, the lower trial number.
    """

    max_members: Annotated[
        int | None, optional(integer(minimum=1)), "different members of the result; None: as many as lower the loss"
    ] = None
    max_additions: Annotated[int, integer(minimum=1), "greedy steps"] = 50
    budget_seconds: Annotated[
        float | None, optional(number(above=0)), "seconds per row at batch 128, summed over different members"
    ] = None
    budget_bytes: Annotated[float | None, optional(number(above=0)), "bytes of parameters"] = None
    cost_weight: Annotated[float, number(minimum=0), "w, the price of seconds"] = 0.0
    bytes_weight: Annotated[float, number(minimum=0), "v, the price of bytes"] = 0.0

    def run(self, candidates: Candidates, scorer: Scorer) -> Selection:
        """Return one greedy run; its best prefix is the result (least objective, of equals the shorter)."""
        self.check(candidates)
        # Costs count once per different member, so a repeat is free.
        seconds, sizes = cost_columns(candidates)
        objective_of = self.objective(candidates, scorer)
        steps: list[GreedyStep] = []
        picks: Picks = ()
        inside = np.zeros(len(candidates), dtype=bool)
        spent, weight = 0.0, 0.0
        while len(steps) < self.max_additions:
            # What the ensemble would cost with each candidate: members share one device, so each further one adds its
            # seconds, and one that is in it already adds nothing.
            cost, size = np.where(inside, spent, spent + seconds), np.where(inside, weight, weight + sizes)
            allowed = self._within_budgets(cost, size)
            if inside.sum() >= _limit_of(self.max_members):
                allowed &= inside
            wanted = np.flatnonzero(allowed)
            if len(wanted) == 0:
                break
            # The loss of the mean of all picks so far and one candidate more, for every candidate that
            # the limits allow.
            losses = scorer.losses(picks, wanted)
            objective = objective_of(losses, cost[wanted], size[wanted])
            # The last key counts most. Rounding keeps equal objectives equal, in whatever order they were added.
            key = (candidates.trials[wanted], seconds[wanted], ~inside[wanted], objective.round(12))
            first = int(np.lexsort(key)[0])
            chosen = int(wanted[first])
            picks, inside[chosen] = (*picks, chosen), True
            spent, weight = float(cost[chosen]), float(size[chosen])
            steps.append(GreedyStep(index=chosen, loss=float(losses[first]), objective=float(objective[first])))
        return Selection.of(steps)

    def objective(self, candidates: Candidates, scorer: Scorer) -> Callable[[Array, Array, Array], Array]:
        """Return what is minimised, as a function of losses, seconds and bytes: scaled by the best single member's.

        A loss that may be negative is scaled by how far the best single member is below the prior's.
        """
        # The scale makes prices comparable over libraries: a weight of 1 lets the loss of the best single
        # member double for its seconds.
        if self.cost_weight == 0 and self.bytes_weight == 0:
            # Without a price the raw loss is compared: a division could turn a tie into a win by rounding.
            return lambda losses, _seconds, _sizes: losses
        seconds, sizes = cost_columns(candidates)
        best = int(rank_members(candidates, scorer)[0])
        least = scorer.loss((best,))
        scale = max(prior_loss(candidates, scorer.metric) - least if scorer.metric.signed else least, 1e-12)
        w = self.cost_weight / seconds[best] if self.cost_weight > 0 else 0.0
        v = self.bytes_weight / max(sizes[best], 1.0)
        return lambda losses, cost, size: losses / scale + (w * cost + v * size)

    def within(self, seconds: float | None, sizes: float | None) -> Self:
        """Return these settings with budgets at least as tight as those given, and without prices."""
        return replace(
            self,
            budget_seconds=_tighter_limit(self.budget_seconds, seconds),
            budget_bytes=_tighter_limit(self.budget_bytes, sizes),
            cost_weight=0.0,
            bytes_weight=0.0,
        )

    def pool(self, candidates: Candidates, scorer: Scorer) -> Iterator[tuple[Picks, float]]:
        """Yield picks and their loss for a front: singles, top-k and every prefix of runs over weights and budgets.

        All of them keep this strategy's own budgets and `max_members`.
        """
        self.check(candidates)
        # First what needs no search: single members and the k best, which greedy runs under budgets may miss.
        order = rank_members(candidates, scorer)
        singles = scorer.losses((), np.arange(len(candidates)))
        yield from (((int(index),), float(singles[index])) for index in order if self.admits(candidates, (int(index),)))
        for picks, loss in rank_top(candidates, scorer, self.max_members):
            if self.admits(candidates, picks):
                yield picks, loss
        # Every prefix of every run is an ensemble of its own: short prefixes are cheap, long ones lose less.
        for variant in self._make_variants(candidates, int(order[0])):
            steps = variant.run(candidates, scorer).steps
            picks = tuple(step.index for step in steps)
            yield from ((picks[: length + 1], step.loss) for length, step in enumerate(steps))

    def admits(self, candidates: Candidates, picks: Picks) -> bool:
        """Say whether picks keep `max_members` and the budgets."""
        members = np.array(sorted(set(picks)))
        seconds, sizes = (column[members].sum() for column in cost_columns(candidates))
        return len(members) <= _limit_of(self.max_members) and bool(self._within_budgets(seconds, sizes))

    def check(self, candidates: Candidates) -> None:
        """Refuse weights and budgets for which costs are missing, and budgets that no member keeps."""
        for what, column, weight, budget in (
            ("seconds", candidates.seconds, self.cost_weight, self.budget_seconds),
            ("bytes", candidates.sizes, self.bytes_weight, self.budget_bytes),
        ):
            if column is None and (weight > 0 or budget is not None):
                raise CostError(
                    f"BudgetedGreedy: got a weight or budget on {what}, which the members of this library do not know "
                    "or measured on different devices; allowed: without; give model= and sample= to tw.ensemble.leave"
                )
            if column is not None and budget is not None and budget < column.min():
                cheapest = int(column.argmin())
                raise EnsembleError(
                    f"BudgetedGreedy.budget_{what}: got {budget:g}; allowed: at least {column[cheapest]:g}, the "
                    f"cheapest member's (trial {candidates.trials[cheapest]})"
                )
        if not self._within_budgets(*cost_columns(candidates)).any():
            raise EnsembleError(
                f"BudgetedGreedy: got budget_seconds={self.budget_seconds:g} and budget_bytes={self.budget_bytes:g}, "
                "which no member keeps both; allowed: budgets that one member keeps; raise either"
            )

    def _within_budgets(self, seconds: Array, sizes: Array) -> Array:
        return np.asarray((seconds <= _limit_of(self.budget_seconds)) & (sizes <= _limit_of(self.budget_bytes)))

    def _make_variants(self, candidates: Candidates, best: int) -> Iterator["BudgetedGreedy"]:
        # Prices and budgets that span the front: from free to ten times the best single member's cost.
        prices = [(self.cost_weight, self.bytes_weight), (0.0, 0.0)]
        budgets = [self.budget_seconds]
        if candidates.seconds is not None:
            prices += [(w, 0.0) for w in _WEIGHTS]
            wanted = [
                min(times * float(candidates.seconds[best]), _limit_of(self.budget_seconds)) for times in _BUDGETS
            ]
            least = candidates.seconds[self._within_budgets(*cost_columns(candidates))].min()
            budgets += [budget for budget in wanted if budget >= least]
        if candidates.sizes is not None:
            prices += [(0.0, v) for v in _BYTES_WEIGHTS]
        for w, v in dict.fromkeys(prices):
            for budget in dict.fromkeys(budgets):
                yield replace(self, cost_weight=w, bytes_weight=v, budget_seconds=budget)


def rank_members(candidates: Candidates, scorer: Scorer) -> Indices:
    """Return the candidates by rising loss alone; ties: cheaper, then lower trial number."""
    losses = scorer.losses((), np.arange(len(candidates))).round(12)
    # lexsort takes its last key first: loss, then seconds, then trial number.
    return np.lexsort((candidates.trials, cost_columns(candidates)[0], losses))


def rank_top(candidates: Candidates, scorer: Scorer, largest: int | None) -> Iterator[tuple[Picks, float]]:
    """Yield the k best members with equal weights, and their loss, for k = 1 to `largest`, without one to 8."""
    order = rank_members(candidates, scorer)
    for count in range(1, min(largest or _LARGEST_TOP, len(order)) + 1):
        picks = tuple(int(index) for index in order[:count])
        yield picks, scorer.loss(picks)


def find_baselines(candidates: Candidates, scorer: Scorer, most: int | None) -> Iterator[tuple[str, Picks, float]]:
    """Yield by name what an ensemble is compared with, and its loss: picks that keep no budget.

    "single best"; "top-k", the k best with equal weights, for k = 2 to `most`; "caruana", greedy without limits.
    """
    for picks, loss in rank_top(candidates, scorer, most):
        yield "single best" if len(picks) == 1 else f"top-{len(picks)}", picks, loss
    # Greedy selection as published: no budget, no price, no limit on members.
    free = BudgetedGreedy().run(candidates, scorer)
    yield "caruana", free.picks, free.steps[free.length - 1].loss


def cost_columns(candidates: Candidates) -> tuple[Array, Array]:
    """Return seconds per row and weight bytes [L], 0 where they are not known."""
    nothing = np.zeros(len(candidates))
    return (
        nothing if candidates.seconds is None else candidates.seconds,
        nothing if candidates.sizes is None else candidates.sizes,
    )


def _tighter_limit(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)


def _limit_of(budget: float | None) -> float:
    return math.inf if budget is None else budget
