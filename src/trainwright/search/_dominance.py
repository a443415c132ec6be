# ruff: noqa: PLR0917 -- compiled code takes positional arguments only
"""How many rows dominate each: one target for several objectives, the rank of Fonseca and Fleming (ICGA 1993).

A row dominates another if it is as good in every objective and better in one; one that keeps all bounds dominates one
that does not, and among those that do not the excess over each constraint's bound counts as an objective (after Deb et
al., IEEE TEVC 6 (2002)). Only comparisons count, so no scale and no outlier does.
"""

import numpy as np
from numpy.typing import NDArray

from trainwright.search._compile import Flags, Floats, compiled

__all__ = ["Dominance", "dominated_shares"]

Array = NDArray[np.float64]


@compiled
def _compare(Z: Floats, kept: Flags, a: int, b: int) -> int:
    """Return 1 if row a dominates row b, -1 if b dominates a, and else 0."""
    if kept[a] != kept[b]:
        return 1 if kept[a] else -1
    better = worse = False
    for j in range(Z.shape[1]):
        if Z[a, j] < Z[b, j]:
            better = True
        elif Z[a, j] > Z[b, j]:
            worse = True
    return int(better) - int(worse)


@compiled
def _enter(Z: Floats, kept: Flags, failed: Flags, start: int, stop: int, counts: Floats) -> None:
    """Count rows start to stop - 1 among all before them, and they among these; O(stop * (stop - start))."""
    for row in range(start, stop):
        counts[row] = 0.0
        if not failed[row]:
            for other in range(row):
                if not failed[other]:
                    first = _compare(Z, kept, other, row)
                    if first > 0:
                        counts[row] += 1.0
                    elif first < 0:
                        counts[other] += 1.0


@compiled
def _count(Z: Floats, kept: Flags, failed: Flags, size: int, start: int, stop: int, counts: Floats) -> None:
    """Fill counts of rows start to stop - 1 with how many of the first `size` rows dominate each."""
    for row in range(start, stop):
        counts[row] = 0.0
        if not failed[row]:
            for other in range(size):
                if not failed[other] and _compare(Z, kept, other, row) > 0:
                    counts[row] += 1.0


class Dominance:
    """Rows of outcomes (objectives first, then constraints), compared with each other."""

    def __init__(self, objectives: int, bounds: Array) -> None:
        self._objectives, self._bounds = objectives, bounds
        self._Z = np.zeros((64, len(bounds)))
        self._kept = np.zeros(64, np.bool_)

    @property
    def rows(self) -> Array:
        """The rows taken: objectives, then what they are in excess of each constraint's bound."""
        return self._Z

    def take(self, outcomes: Array, start: int) -> None:
        """Take rows [rows, outcomes] as those from `start` on."""
        stop = start + len(outcomes)
        if stop > len(self._Z):
            room = max(stop, 2 * len(self._Z)) - len(self._Z)
            self._Z = np.concatenate([self._Z, np.zeros((room, self._Z.shape[1]))])
            self._kept = np.concatenate([self._kept, np.zeros(room, np.bool_)])
        over = np.maximum(0.0, outcomes[:, self._objectives :] - self._bounds[self._objectives :])
        self._Z[start:stop] = np.column_stack([outcomes[:, : self._objectives], over])
        self._kept[start:stop] = (outcomes <= self._bounds).all(axis=1)

    def enter(self, failed: NDArray[np.bool_], start: int, stop: int, counts: Array) -> None:
        """Bring the counts of the first `start` rows to those of the first `stop`."""
        _enter(self._Z, self._kept, failed, start, stop, counts)

    def count(self, failed: NDArray[np.bool_], size: int, start: int, stop: int, counts: Array) -> None:
        """Fill the counts of rows start to stop - 1 by the first `size` rows alone."""
        _count(self._Z, self._kept, failed, size, start, stop, counts)


def dominated_shares(losses: Array) -> Array:
    """Return for each row of losses [rows, objectives] its place by how many dominate it, from 0 to 1, ties shared."""
    counts = np.zeros(len(losses))
    _enter(losses, np.ones(len(losses), np.bool_), np.zeros(len(losses), np.bool_), 0, len(losses), counts)
    _, place, each = np.unique(counts, return_inverse=True, return_counts=True)
    found: Array = ((np.cumsum(each) - 0.5 * each) / max(1, len(losses)))[place]
    return found
