"""Contiguous partitions whose busiest part has least to do, by dynamic programming from the end (PipeDream, SOSP 2019).

A(i, p), the best of items i.. in p parts, is the least over ends j of the larger of the load of i..j-1 and
A(j, p - 1); of equal choices the part that ends first.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["least_load_partitions", "shortest_longest_parts"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BestEnds = Callable[[Floats, int], tuple[Floats, Ints]]
"""From A(., p - 1) [items + 1] and p to A(., p) and the end of the first of these parts, by where it begins."""


def least_load_partitions(length: int, most: int, best_ends: BestEnds) -> list[tuple[float, list[int]]]:
    """Return for 1, 2, ... `most` parts of so many items the load of the busiest (inf if none fits), and all ends."""
    rest = np.full(length + 1, np.inf)
    rest[length] = 0.0
    chosen: list[Ints] = []
    found = []
    for parts in range(1, most + 1):
        rest, ends = best_ends(rest, parts)
        chosen.append(ends)
        # Follow the choices from the first item: with fewer and fewer parts left.
        place = 0
        path: list[int] = []
        for each in reversed(chosen):
            place = int(each[place])
            path.append(place)
        found.append((float(rest[0]), path))
    return found


def shortest_longest_parts(seconds: Floats, most: int) -> list[Ints]:
    """Return for 1, 2, ... `most` parts where each ends, so that the longest is shortest; of equal ones the last cuts.

    The items are gone through backwards, so that the part that ends first is the last; n^2 steps a part.
    """
    length = len(seconds)
    before = np.concatenate([[0.0], np.cumsum(seconds)])
    # Seconds of items i..j-1 at [i, j]; a part has at least one item.
    spans = np.where(np.tri(length + 1, dtype=np.bool_).T, before[None, :] - before[:, None], np.inf)
    np.fill_diagonal(spans, np.inf)
    # The same of the reversed row: its items i..j-1 are n-j..n-i-1 of the row as it is.
    backwards = spans[::-1, ::-1].T

    def best_ends(rest: Floats, _: int) -> tuple[Floats, Ints]:
        largest = np.maximum(rest[None, :], backwards)
        ends = np.argmin(largest, axis=1)
        return largest[np.arange(length + 1), ends], ends

    return [
        np.array([*(length - end for end in reversed(ends[:-1])), length], dtype=np.int64)
        for _, ends in least_load_partitions(length, most, best_ends)
    ]
