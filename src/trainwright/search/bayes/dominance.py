# ruff: noqa: PLR0917 -- compiled code takes positional arguments only
"""How many rows dominate each: one target for several objectives, the rank of Fonseca and Fleming (ICGA 1993).

A row dominates another if it is as good in every objective and better in one; one that keeps all bounds dominates one
that does not, and among those that do not the excess over each constraint's bound counts as an objective (after Deb et
al., IEEE TEVC 6 (2002)). Only comparisons count, so no scale and no outlier does.
"""

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.kernels import Floats, compiled

__all__ = ["Dominance", "dominated_shares"]

Small = NDArray[np.int8]


@compiled
def _sides(Z: Floats, row: int, size: int, below: Small, above: Small) -> None:
    """Fill below with whether each of the first `size` rows is nowhere worse than `row`, above with nowhere better.

    Column after column and without branches, so that eight comparisons are one instruction.
    """
    below[:size] = 1
    above[:size] = 1
    for j in range(len(Z)):
        value = Z[j, row]
        column = Z[j]
        for i in range(size):
            below[i] &= column[i] <= value
            above[i] &= column[i] >= value


@compiled
def _count(Z: Floats, classes: Small, size: int, start: int, stop: int, counts: Floats, among: bool) -> None:
    """Fill counts of rows start to stop - 1 with how many of the first `size` rows dominate each.

    With `among` they are compared with all rows before them instead, whose counts grow; O(stop * (stop - start)).
    """
    below, above = np.empty(stop, np.int8), np.empty(stop, np.int8)
    for row in range(start, stop):
        first = row if among else size
        _sides(Z, row, first, below, above)
        row_class, dominators = classes[row], 0
        for i in range(first):
            equal = classes[i] == row_class
            dominators += (classes[i] > row_class) | (equal & (below[i] > above[i]))
            if among:
                counts[i] += (classes[i] < row_class) | (equal & (below[i] < above[i]))
        counts[row] = dominators


class Dominance:
    """Rows of outcomes (objectives first, then constraints), compared with each other; failed ones lose to all."""

    def __init__(self, objectives: int, bounds: Array) -> None:
        self._objectives, self._bounds = objectives, bounds
        self._Z = np.zeros((len(bounds), 64))
        self._classes = np.zeros(64, np.int8)  # 1: keeps all bounds; 0: does not; -1: failed

    @property
    def rows(self) -> Array:
        """The rows taken: objectives, then what they are in excess of each constraint's bound."""
        return self._Z.T

    def take(self, outcomes: Array, failed: NDArray[np.bool_], start: int) -> None:
        """Take rows [rows, outcomes] as those from `start` on."""
        stop = start + len(outcomes)
        if stop > len(self._classes):
            room = max(stop, 2 * len(self._classes)) - len(self._classes)
            self._Z = np.concatenate([self._Z, np.zeros((len(self._Z), room))], axis=1)
            self._classes = np.concatenate([self._classes, np.zeros(room, np.int8)])
        # Within a bound no excess is better than another, so all of it is 0.
        over = np.maximum(0.0, outcomes[:, self._objectives :] - self._bounds[self._objectives :])
        self._Z[: self._objectives, start:stop] = outcomes[:, : self._objectives].T
        self._Z[self._objectives :, start:stop] = over.T
        self._classes[start:stop] = np.where(failed, -1, (outcomes <= self._bounds).all(axis=1))

    def enter(self, start: int, stop: int, counts: Array) -> None:
        """Bring the counts of the first `start` rows to those of the first `stop`."""
        _count(self._Z, self._classes, 0, start, stop, counts, among=True)

    def count(self, size: int, start: int, stop: int, counts: Array) -> None:
        """Fill the counts of rows start to stop - 1 by the first `size` rows alone."""
        _count(self._Z, self._classes, size, start, stop, counts, among=False)


def dominated_shares(losses: Array) -> Array:
    """Return for each row of losses [rows, objectives] its place by how many dominate it, from 0 to 1, ties shared."""
    counts = np.zeros(len(losses))
    dominance = Dominance(losses.shape[1], np.full(losses.shape[1], np.inf))
    dominance.take(losses, np.zeros(len(losses), np.bool_), 0)
    dominance.enter(0, len(losses), counts)
    # Rows that as many dominate share the middle of their places.
    _, place, sizes = np.unique(counts, return_inverse=True, return_counts=True)
    found: Array = ((np.cumsum(sizes) - 0.5 * sizes) / max(1, len(losses)))[place]
    return found
