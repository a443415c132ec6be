"""The front: all ensembles than which no other is as good in loss, seconds and bytes and better in one of them."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from trainwright.ensemble.candidates import Candidates, Picks, Scorer
from trainwright.ensemble.ensemble import Ensemble
from trainwright.ensemble.entry import Member
from trainwright.errors import EnsembleError, closest
from trainwright.pareto import non_dominated

__all__ = ["Front", "Point", "Strategy", "point_of", "points_of"]


class Strategy(Protocol):
    """How ensembles are found: everything worth comparing, as picks of candidates (repeats count) with their loss."""

    @property
    def max_members(self) -> int:
        """Most different members of a result."""

    def pool(self, candidates: Candidates, scorer: Scorer) -> Iterable[tuple[Picks, float]]:
        """Yield picks that keep this strategy's limits, and their loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One ensemble on the selection rows: its loss, what it costs, and who is in it with which weight."""

    loss: float
    seconds_per_row: float | None  # summed over members, at batch 128; None if not measured
    bytes: int | None
    members: tuple[int, ...]  # trial numbers, ascending
    weights: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Front:
    """Points by rising loss, none of which dominates another, beside the baselines "single best" and "top-k".

    Losses here are of the `split` that selection saw, and so too good; `Ensemble.score` gives those of held-out rows.
    """

    points: tuple[Point, ...]
    baselines: Mapping[str, Point]
    library: Mapping[int, Member] = field(repr=False)
    metric: str
    split: str
    excluded: Mapping[int, str] = field(default_factory=dict)

    def pick(self, how: str = "best", *, max_seconds: float | None = None, max_bytes: float | None = None) -> Ensemble:
        """Return the "best" (least loss) or "knee" point within the limits, as an ensemble.

        The knee is the point nearest to the ideal corner when loss, seconds and bytes are each scaled to their range.
        """
        if how not in _PICKS:
            raise EnsembleError(f"Front.pick: got {how!r}; allowed: {', '.join(_PICKS)}{closest(how, _PICKS)}")
        points = self.points
        for what, limit, costs in (
            ("seconds", max_seconds, [point.seconds_per_row for point in points]),
            ("bytes", max_bytes, [point.bytes for point in points]),
        ):
            if limit is not None:
                known = [cost for cost in costs if cost is not None]
                if not known:
                    raise EnsembleError(
                        f"Front.pick, max_{what}: got {limit!r}, but the members' {what} are not known; "
                        "allowed: no limit; give model= and sample= to tw.ensemble.leave"
                    )
                if not min(known) <= limit:
                    raise EnsembleError(
                        f"Front.pick, max_{what}: got {limit!r}; allowed: at least {min(known):g}, the cheapest point's"
                    )
        within = [
            point
            for point in points
            if (max_seconds is None or (point.seconds_per_row or 0.0) <= max_seconds)
            and (max_bytes is None or (point.bytes or 0) <= max_bytes)
        ]
        if not within:
            raise EnsembleError(
                f"Front.pick: got max_seconds={max_seconds!r} and max_bytes={max_bytes!r}, which no point keeps both; "
                "allowed: limits that one point keeps; raise either"
            )
        return self.ensemble(within[0] if how == "best" else _knee(within))

    def ensemble(self, point: Point) -> Ensemble:
        """Return a point of the front or of the baselines as an ensemble."""
        return Ensemble(members=tuple(self.library[trial] for trial in point.members), weights=point.weights)

    @property
    def single_best(self) -> Ensemble:
        """The one member of least loss, whatever it costs."""
        return self.ensemble(self.baselines["single best"])

    def summary(self, ensemble: Ensemble, split: str = "test") -> dict[str, float | None]:
        """Return the accuracy of the single best and of `ensemble` on held-out rows, and what the latter costs."""
        return {
            f"single_{split}_accuracy": self.single_best.score(split, "accuracy"),
            f"ensemble_{split}_accuracy": ensemble.score(split, "accuracy"),
            "ensemble_cost": ensemble.cost_seconds,
        }


_PICKS = ("best", "knee")


def point_of(candidates: Candidates, picks: Picks, loss: float) -> Point:
    """Return picks as a point; a member picked more often weighs more and costs the same."""
    counts = sorted(Counter(picks).items())
    indices = [index for index, _ in counts]
    seconds, sizes = candidates.seconds, candidates.sizes
    return Point(
        loss=loss,
        seconds_per_row=None if seconds is None else math.fsum(seconds[indices]),
        bytes=None if sizes is None else int(sizes[indices].sum()),
        members=tuple(int(candidates.trials[index]) for index in indices),
        weights=tuple(times / len(picks) for _, times in counts),
    )


def points_of(candidates: Candidates, pool: Iterable[tuple[Picks, float]]) -> tuple[Point, ...]:
    """Return the non-dominated points of a pool by rising loss; of equal ones the first."""
    points: dict[tuple[tuple[int, ...], tuple[float, ...]], Point] = {}
    for picks, loss in pool:
        point = point_of(candidates, picks, loss)
        points.setdefault((point.members, point.weights), point)
    found = list(points.values())
    axes = np.array([_axes(point) for point in found]).reshape(len(found), 3)
    front = np.flatnonzero(non_dominated(axes))
    _, firsts = np.unique(axes[front], axis=0, return_index=True)
    return tuple(found[index] for index in front[firsts])


def _axes(point: Point) -> tuple[float, float, float]:
    # Losses that differ by rounding alone are equal: the same members may have been picked in another order.
    return round(point.loss, 12), point.seconds_per_row or 0.0, float(point.bytes or 0)


def _knee(points: list[Point]) -> Point:
    values = np.array([_axes(point) for point in points])
    low, high = values.min(axis=0), values.max(axis=0)
    scaled = (values - low) / np.where(high > low, high - low, 1.0)
    return points[int((scaled**2).sum(axis=1).round(12).argmin())]
