# ruff: noqa: PLR0917 -- compiled code takes positional arguments only
"""Kernels that turn losses into the targets of regression: ranks, kept up to date row by row."""

import numpy as np

from trainwright.kernels import Flags, Floats, Ints, compiled

__all__ = ["place", "scale"]


@compiled
def place(losses: Floats, failed: Flags, sorted_: Floats, known: Floats, bad: Floats, first: int, stop: int,
          targets: Floats) -> None:  # fmt: skip
    """Fill targets [outcomes, rows] of rows first to stop - 1 by the scale of others; O(log finite) each.

    `sorted_` and `known` [outcomes, finite] are the others' losses in order and their targets: a row gets what an equal
    one has, or the mean of its neighbours; if it failed, `bad`.
    """
    for j in range(sorted_.shape[0]):
        finite = sorted_.shape[1]
        for row in range(first, stop):
            # A failure is as bad as the worst that was seen, or the search would return to where trials fail.
            if failed[row] or finite == 0:
                targets[j, row] = bad[j]
                continue
            value = losses[row, j]
            # Binary search for the first loss above this one.
            low, high = 0, finite
            while low < high:
                middle = (low + high) // 2
                if sorted_[j, middle] <= value:
                    low = middle + 1
                else:
                    high = middle
            if low == 0:
                targets[j, row] = known[j, 0]
            elif low == finite or sorted_[j, low - 1] == value:
                targets[j, row] = known[j, low - 1]
            else:
                targets[j, row] = 0.5 * (known[j, low - 1] + known[j, low])


@compiled
def scale(
    losses: Floats, failed: Flags, order: Ints, finite: int, count: int, targets: Floats,
    bounds: Floats, limits: Floats, bads: Floats,
) -> None:  # fmt: skip
    """Fill targets [outcomes, rows] with the scaled losses of the first `count` rows, limits with the bounds; O(count).

    Losses above Q3 + 1.5 IQR are clipped, if IQR > 0, and not below that much above a bound; a target is then
    (mean rank - 1/2) / finite. A failed row gets the worst target, or 1/2 if there is none: `bads` [outcomes].
    """
    for j in range(order.shape[0]):
        bad = 0.5
        limits[j] = np.inf
        if finite > 0:
            quartiles = np.empty(2)
            for q in range(2):
                place = (0.25 + 0.5 * q) * (finite - 1)
                below = int(place)
                above = min(below + 1, finite - 1)
                share = place - below
                quartiles[q] = (1.0 - share) * losses[order[j, below], j] + share * losses[order[j, above], j]
            # Outliers are clipped at Tukey's fence, or by as much above a bound that lies higher.
            reach = 1.5 * (quartiles[1] - quartiles[0])
            fence = quartiles[1] + reach
            if np.isfinite(bounds[j]):
                fence = max(fence, bounds[j] + reach)
            if quartiles[0] == quartiles[1]:  # most losses are one number: nothing says how far others may lie
                fence = np.inf
            # Equal losses share the mean of their ranks.
            start = within = 0
            while start < finite:
                value = min(fence, losses[order[j, start], j])
                stop = start + 1
                while stop < finite and min(fence, losses[order[j, stop], j]) == value:
                    stop += 1
                target = 0.5 * (start + stop) / finite
                for place in range(start, stop):
                    targets[j, order[j, place]] = target
                    if losses[order[j, place], j] <= bounds[j]:  # a clipped one may lie on the bound, but is beyond
                        within = place + 1
                bad = target
                start = stop
            if np.isfinite(bounds[j]):
                limits[j] = within / finite
        bads[j] = bad
        for i in range(count):
            if failed[i]:
                targets[j, i] = bad
