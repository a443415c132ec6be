# ruff: noqa: PLR0917 -- compiled code takes positional arguments only
"""Kernels that turn losses into the targets of regression: ranks or a range in [0, 1], kept up to date row by row."""

import numpy as np

from trainwright.search._compile import Flags, Floats, Ints, compiled

__all__ = ["rank", "scale"]


@compiled
def rank(losses: Floats, order: Ints, finite: int, row: int) -> None:
    """Insert `row` into the first `finite` entries of `order` [objectives, rows], which sort `losses`; O(finite)."""
    for j in range(order.shape[0]):
        value = losses[row, j]
        low, high = 0, finite
        while low < high:
            middle = (low + high) // 2
            if losses[order[j, middle], j] <= value:
                low = middle + 1
            else:
                high = middle
        for place in range(finite, low, -1):
            order[j, place] = order[j, place - 1]
        order[j, low] = row


@compiled
def scale(
    losses: Floats, failed: Flags, minmax: bool, lenient: bool, order: Ints, finite: int, count: int, targets: Floats
) -> None:
    """Fill targets [objectives, rows] with the losses of the first `count` rows scaled to [0, 1]; O(count).

    Losses above Q3 + 1.5 IQR are clipped, if IQR > 0; then (mean rank - 1/2) / finite, or if `minmax`
    (loss - min) / (max - min). A failed row gets the worst target, or if `lenient` the mean one; without any: 1/2.
    """
    for j in range(order.shape[0]):
        bad = 0.5
        if finite > 0:
            total = 0.0
            quartiles = np.empty(2)
            for q in range(2):
                place = (0.25 + 0.5 * q) * (finite - 1)
                below = int(place)
                above = min(below + 1, finite - 1)
                share = place - below
                quartiles[q] = (1.0 - share) * losses[order[j, below], j] + share * losses[order[j, above], j]
            fence = quartiles[1] + 1.5 * (quartiles[1] - quartiles[0])
            if quartiles[0] == quartiles[1]:  # most losses are one number: nothing says how far others may lie
                fence = np.inf
            least = losses[order[j, 0], j]
            greatest = min(fence, losses[order[j, finite - 1], j])
            start = 0
            while start < finite:
                value = min(fence, losses[order[j, start], j])
                stop = start + 1
                while stop < finite and min(fence, losses[order[j, stop], j]) == value:
                    stop += 1
                if not minmax:
                    target = 0.5 * (start + stop) / finite
                elif least < greatest:  # halves, since the range of doubles is no double
                    target = (0.5 * value - 0.5 * least) / (0.5 * greatest - 0.5 * least)
                else:
                    target = 0.5
                for place in range(start, stop):
                    targets[j, order[j, place]] = target
                total += (stop - start) * target
                bad = total / finite if lenient else target
                start = stop
        for i in range(count):
            if failed[i]:
                targets[j, i] = bad
