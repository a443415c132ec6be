"""Normalises losses for surrogates: ranks, which are the targets of regression, and one scale for losses of all rungs.

A loss at epoch 3 cannot be compared with one at epoch 27, and ranks within each rung alone would call the worst of the
few that got far worse than most of those that were stopped. So a rung keeps the order of its losses, and takes its
values from below: of the trials that have a row lower down too, the best one here gets the best value that any of them
had there, the second best the second, and so on; other losses lie between. The lowest rung stays as it is.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.search.view import SearchView

__all__ = ["LossScale", "RungScale", "scale_size"]

Curve = tuple[Array, Array]  # losses in order, and their values

_STEP = 1.1  # scales that are kept are set anew at the sizes floor(1.1^k)
_SHARE = 0.5  # of a rung's trials: with fewer that have a row below, the rung keeps its own losses


@dataclass(frozen=True, kw_only=True, slots=True)
class LossScale:
    """What losses are worth as targets: their rank among some of them."""

    losses: Array  # finite ones, in order
    targets: Array  # of these
    limit: float  # the target of a bound; inf where there is none
    bad: float  # the target of a failed row: the worst, or 1/2 if there is none

    @classmethod
    def of(cls, losses: Array, bound: float) -> Self:
        """Return the scale of finite losses in order: a target is (mean rank - 1/2) / count.

        Losses above Q3 + 1.5 IQR are clipped, if IQR > 0, and not below that much above a bound.
        """
        count = len(losses)
        if not count:
            return cls(losses=losses, targets=losses, limit=np.inf, bad=0.5)
        places = np.array([0.25, 0.75]) * (count - 1)
        below = places.astype(np.intp)
        share = places - below
        low, high = (1.0 - share) * losses[below] + share * losses[np.minimum(below + 1, count - 1)]
        # Outliers are clipped at Tukey's fence, or by as much above a bound that lies higher.
        with np.errstate(over="ignore"):  # the range of doubles is no double
            reach = 1.5 * (high - low)
            fence = max(high + reach, bound + reach) if np.isfinite(bound) else high + reach
        # Where most losses are one number, nothing says how far others may lie.
        clipped = losses if low == high else np.minimum(losses, fence)
        # Equal losses share the mean of their ranks.
        edges = np.concatenate([[0], np.flatnonzero(clipped[1:] != clipped[:-1]) + 1, [count]])
        targets = np.repeat(0.5 * (edges[:-1] + edges[1:]) / count, np.diff(edges))
        # A clipped loss may lie on the bound, but is beyond it.
        within = float(np.searchsorted(losses, bound, side="right")) / count
        return cls(
            losses=losses, targets=targets, limit=within if np.isfinite(bound) else np.inf, bad=float(targets[-1])
        )

    def place(self, losses: Array, failed: NDArray[np.bool_]) -> Array:
        """Return the targets of other losses [rows]: what an equal one has, or the mean of its neighbours."""
        if not len(self.losses):
            return np.full(len(losses), self.bad)
        above = np.searchsorted(self.losses, losses, side="right")
        lower = np.maximum(above - 1, 0)
        upper = np.where((above == 0) | (self.losses[lower] == losses), lower, np.minimum(above, len(self.losses) - 1))
        # A failure is as bad as the worst that was seen, or the search would return to where trials fail.
        return np.where(failed, self.bad, 0.5 * (self.targets[lower] + self.targets[upper]))


def scale_size(view: SearchView) -> int:
    """Return at how many rows the scale that holds now was set, by who keeps one; 0 where all rows are final."""
    if not view.partial:
        return 0
    k = int(np.log(view.count) / np.log(_STEP)) + 1
    while (size := int(_STEP**k)) > view.count:
        k -= 1
    return size


@dataclass(frozen=True, kw_only=True, slots=True)
class RungScale:
    """The maps of the rungs above the lowest, by rung and outcome."""

    maps: dict[tuple[int, int], Curve]

    @classmethod
    def of(cls, view: SearchView, size: int) -> Self:
        """Return the scale of the first `size` rows, O(size log size); an outcome with a bound keeps its numbers."""
        finished = np.flatnonzero(~view.failed[:size])
        rungs, numbers = view.rungs[finished], view.numbers[finished]
        maps: dict[tuple[int, int], Curve] = {}
        levels = np.unique(rungs).tolist()
        for outcome in np.flatnonzero(~np.isfinite(view.bounds)).tolist():
            # An outcome with a bound keeps its numbers, or the bound would mean nothing.
            values = view.outcomes[finished, outcome].copy()
            below: dict[int, float] = {}  # by trial: its value at its last rung so far
            # From the lowest rung up: the losses of a rung take the values that the same trials had below.
            for rung in levels:
                here = np.flatnonzero(rungs == rung)
                trials = numbers[here].tolist()
                known = np.array([trial in below for trial in trials])
                if known.sum() > _SHARE * len(here):
                    theirs = np.sort([below[trial] for trial in trials if trial in below])
                    maps[rung, outcome] = _curve(np.sort(values[here[known]]), theirs)
                    values[here] = np.interp(values[here], *maps[rung, outcome])
                below |= zip(trials, values[here].tolist(), strict=True)
        return cls(maps=maps)

    def __call__(self, outcomes: Array, rungs: NDArray[np.int64]) -> Array:
        """Return the values of outcomes [rows, outcomes] at rungs [rows]; what is infinite stays so."""
        values = outcomes.copy()
        for (rung, outcome), curve in self.maps.items():
            # Beyond the ends of a curve `interp` gives its end values: better than all is as good as the best.
            here = (rungs == rung) & np.isfinite(outcomes[:, outcome])
            values[here, outcome] = np.interp(outcomes[here, outcome], *curve)
        return values


def _curve(losses: Array, values: Array) -> Curve:
    """Return the curve through (loss, value), both in order; equal losses share the mean of their values."""
    places, which, counts = np.unique(losses, return_inverse=True, return_counts=True)
    return places, np.bincount(which, values) / counts
