"""Pareto fronts of losses (all minimised): non-dominated sorting, ranks, and hypervolume.

A row dominates another if it is as good in every column and better in one; so equal rows never dominate each other.
"""

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array, Mask

__all__ = ["MOST_OBJECTIVES", "dominates", "hypervolume", "non_dominated", "ranks", "reference_of"]


MOST_OBJECTIVES = 6  # up to which the hypervolume takes a bearable time


def dominates(one: Array, other: Array) -> Mask:
    """Return where losses [..., m] dominate others."""
    found: Mask = np.logical_and((one <= other).all(axis=-1), (one < other).any(axis=-1))
    return found


def non_dominated(losses: Array) -> Mask:
    """Return which rows of losses [n, m] no other dominates; equal ones are all kept. O(n * front), if m = 2 a sort."""
    keep = np.zeros(len(losses), dtype=np.bool_)
    if not len(losses):
        return keep
    order = np.lexsort(losses.T[::-1])  # whatever dominates a row comes before it
    rows = losses[order]
    if losses.shape[1] == 2:
        # Rows that are equal in the first objective form a run, in which the second one rises.
        first = np.concatenate([[True], rows[1:, 0] > rows[:-1, 0]])
        start = np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))  # where its first objective begins
        # The least second objective of all runs before this one.
        before = np.concatenate([[np.inf], np.minimum.accumulate(rows[:, 1])])[start]
        # A row is kept if it beats those there, and is as good as the first row of its own run.
        better = (rows[:, 1] < before) | (start == 0)  # the least in the first objective, even if the other is inf
        keep[order] = better & (rows[:, 1] == rows[start, 1])
        return keep
    front = np.empty_like(rows)
    count = 0
    # What could dominate a row was met before it, so that a row on the front stays there.
    for place, row in zip(order, rows, strict=True):
        if not dominates(front[:count], row).any():
            keep[place] = True
            front[count] = row
            count += 1
    return keep


def ranks(losses: Array) -> NDArray[np.int64]:
    """Return each row's rank: 0 on the front, 1 on the front of the others, and so on (Goldberg, 1989)."""
    found = np.full(len(losses), -1, dtype=np.int64)
    rank = 0
    while (left := np.flatnonzero(found < 0)).size:
        found[left[non_dominated(losses[left])]] = rank
        rank += 1
    return found


def reference_of(losses: Array) -> Array:
    """Return a reference point for losses [n, m], n > 0: a tenth of its range beyond the worst of each objective."""
    worst, spread = losses.max(axis=0), np.ptp(losses, axis=0)
    # Where all rows agree in an objective there is no range, and the size of its value stands in.
    beyond: Array = worst + 0.1 * np.where(spread > 0.0, spread, np.maximum(np.abs(worst), 1.0))
    return beyond


def hypervolume(losses: Array, reference: Array) -> float:
    """Return the volume between losses [n, m] and the reference point [m], exactly; rows beyond it count nothing.

    A sweep for two objectives, O(n log n); above, recursive exclusive volumes (While, Bradstreet and Barone, IEEE
    TEVC 2012), exponential in m. The order of rows plays no part.
    """
    reference = np.asarray(reference, dtype=np.float64)
    return _volume(_within(np.asarray(losses, dtype=np.float64), reference), reference)


def _within(losses: Array, reference: Array) -> Array:
    """Return the distinct front rows that are better than the reference everywhere, in one order."""
    found: Array = np.unique(losses[(losses < reference).all(axis=1)], axis=0)
    return found[non_dominated(found)]


def _volume(front: Array, reference: Array) -> float:
    """Return the hypervolume of distinct non-dominated rows in ascending order."""
    if not len(front):
        return 0.0
    if len(front) == 1:
        return float(np.prod(reference - front[0]))
    if len(reference) == 1:
        return float(reference[0] - front[0, 0])
    if len(reference) == 2:
        # The first objective rises and the second falls, so a row adds the strip below the height of the one before it.
        heights = np.concatenate([[reference[1]], front[:-1, 1]]) - front[:, 1]
        return float(((reference[0] - front[:, 0]) * heights).sum())
    # Worst in the last objective first: the rest of a row's slice then has one objective less.
    front = front[np.lexsort(front.T)[::-1]]
    total = 0.0
    for place, row in enumerate(front):
        depth = reference[-1] - row[-1]
        # Later rows are as good in the last objective, so that what they share with this row has its full depth.
        rest = np.unique(np.maximum(front[place + 1 :, :-1], row[:-1]), axis=0)
        rest = rest[non_dominated(rest)]
        total += depth * (float(np.prod(reference[:-1] - row[:-1])) - _volume(rest, reference[:-1]))
    return total
