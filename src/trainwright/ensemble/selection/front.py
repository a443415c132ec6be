"""Finds the front of ensembles, Pareto-optimal in loss, seconds and bytes, and picks one point of it."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from trainwright.ensemble.combine.rules import default_rule
from trainwright.ensemble.ensemble import Ensemble
from trainwright.ensemble.metrics import Metric
from trainwright.ensemble.selection.candidates import Candidates, Picks
from trainwright.ensemble.selection.greedy import BudgetedGreedy
from trainwright.ensemble.selection.protection import Protection, protect
from trainwright.errors import CostError, EnsembleError, closest
from trainwright.pareto import non_dominated

__all__ = ["PICKS", "Front", "FrontPoint", "find_front", "make_point"]

PICKS = ("best", "fallback")


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontPoint:
    """One ensemble on the selection rows: its loss, what it costs, and who is in it with which weight."""

    loss: float
    seconds_per_row: float | None  # summed over members, at batch 128; None if not measured
    bytes: int | None
    members: tuple[int, ...]  # trial numbers, ascending; of several snapshots of a trial, the same number
    weights: tuple[float, ...]
    places: tuple[int, ...] = field(default=(), repr=False)  # of the members among the candidates


@dataclass(frozen=True, kw_only=True)
class Front:
    """The Pareto front by rising loss, and baselines that ignore the budget.

    Those are "single best", "top-k" (the k best with equal weights) and "caruana" (greedy without limits).

    Losses here are of the `split` that selection saw, and so too good; `protection` says by how much, and
    `Ensemble.score` gives those of held-out rows.
    """

    points: tuple[FrontPoint, ...]
    baselines: Mapping[str, FrontPoint]
    scored_by: Metric
    split: str
    excluded: Mapping[int, str]
    strategy: BudgetedGreedy = field(repr=False)
    candidates: Candidates = field(repr=False)

    def pick(self, how: str = "best", *, max_seconds: float | None = None, max_bytes: float | None = None) -> Ensemble:
        """Return a point within the limits, as an ensemble: "best", the one of least loss, or "fallback".

        The fallback is the simplest of single best, top-k and greedy that is within one standard error of the best of
        them out of fold, all chosen within the limits; see `protection`.
        """
        if how not in PICKS:
            raise EnsembleError(f"Front.pick: got {how!r}; allowed: {', '.join(PICKS)}{closest(how, PICKS)}")
        within = self.points
        for what, limit in (("seconds", max_seconds), ("bytes", max_bytes)):
            if limit is None:
                continue
            costs = [point.seconds_per_row if what == "seconds" else point.bytes for point in within]
            known = [cost for cost in costs if cost is not None]
            if not known:
                raise CostError(
                    f"Front.pick, max_{what}: got {limit!r}, but the members' {what} are not known; "
                    "allowed: no limit; give model= and sample= to tw.ensemble.leave"
                )
            # Written so that a limit of NaN is refused too.
            if not min(known) <= limit:
                raise EnsembleError(
                    f"Front.pick, max_{what}: got {limit!r}; allowed: at least {min(known):g}, the cheapest point's"
                    f"{' of those within max_seconds' if len(within) < len(self.points) else ''}"
                )
            within = tuple(point for point, cost in zip(within, costs, strict=True) if cost is None or cost <= limit)
        if how == "fallback":
            # Without limits the cross-validation is the cached one.
            free = max_seconds is None and max_bytes is None
            found = self.protection if free else self.protect(max_seconds=max_seconds, max_bytes=max_bytes)
            return self.ensemble(make_point(self.candidates, found.picks, found.checked[found.chosen].loss))
        # Points are in order of loss, so the first within the limits is the best.
        return self.ensemble(within[0])

    def ensemble(self, point: FrontPoint) -> Ensemble:
        """Return a point of the front or of the baselines as an ensemble."""
        members = tuple(self.candidates.members[place] for place in point.places)
        return Ensemble(members=members, weights=point.weights, rule=default_rule(members[0].output))

    @property
    def metric(self) -> str:
        """The name of the metric that members were selected by."""
        return self.scored_by.name

    @cached_property
    def protection(self) -> Protection:
        """What 5-fold cross-validation, 5 times, says of the choices single best, top-k and the strategy's own."""
        return self.protect()

    def protect(self, *, max_seconds: float | None = None, max_bytes: float | None = None) -> Protection:
        """Return what cross-validation says of the choices, all kept within limits on seconds per row and bytes."""
        # The strategy gets the same limits, so that every fold chooses under them too.
        return protect(self.candidates, self.scored_by, self.strategy.within(max_seconds, max_bytes))

    @property
    def single_best(self) -> Ensemble:
        """The single member with the least loss, regardless of cost."""
        return self.ensemble(self.baselines["single best"])


def make_point(candidates: Candidates, picks: Picks, loss: float) -> FrontPoint:
    """Return picks as a point; a member picked more often weighs more and costs the same."""
    # Repeats become weights; costs count each member once.
    counts = sorted(Counter(picks).items())
    indices = [index for index, _ in counts]
    seconds, sizes = candidates.seconds, candidates.sizes
    return FrontPoint(
        loss=loss,
        seconds_per_row=None if seconds is None else math.fsum(seconds[indices]),
        bytes=None if sizes is None else int(sizes[indices].sum()),
        members=tuple(int(candidates.trials[index]) for index in indices),
        weights=tuple(times / len(picks) for _, times in counts),
        places=tuple(indices),
    )


def find_front(candidates: Candidates, pool: Iterable[tuple[Picks, float]]) -> tuple[FrontPoint, ...]:
    """Return the non-dominated points of a pool by rising loss; of equal ones the first."""
    # The same members with the same weights come from many runs; the first is kept.
    points: dict[tuple[tuple[int, ...], tuple[float, ...]], FrontPoint] = {}
    for picks, loss in pool:
        point = make_point(candidates, picks, loss)
        points.setdefault((point.places, point.weights), point)
    found = list(points.values())
    # Losses that differ by rounding alone are equal: the same members may have been picked in another order.
    rows = [(round(point.loss, 12), point.seconds_per_row or 0.0, float(point.bytes or 0)) for point in found]
    axes = np.array(rows).reshape(len(found), 3)
    # Dominance is judged on loss, seconds and bytes together.
    front = np.flatnonzero(non_dominated(axes))
    # Distinct rows come out by rising loss, each with the place where it was found first.
    _, firsts = np.unique(axes[front], axis=0, return_index=True)
    return tuple(found[index] for index in front[firsts])
