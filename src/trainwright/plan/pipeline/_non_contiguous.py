"""Kernel of `special`: placements of a chain's layers on normal devices and one special, for a target period."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.kernels import Floats, Ints, compiled

__all__ = ["PlacementTables", "search_placements"]


class PlacementTables(NamedTuple):
    """What stages k..l (from 0) cost, links between layers, and the limits."""

    plain: NDArray[np.float64]
    """[n + 1] Sums of seconds of layers 0..k-1, nothing recomputed."""
    link: NDArray[np.float64]
    """[n] Load of the link before layer k, both ways; 0 for the first."""
    normal: NDArray[np.float64]
    """[n, n, g] Seconds of a stage on a device of its own with 1..g micro-batches in flight, inf where none fit."""
    fixed: NDArray[np.float64]
    each: NDArray[np.float64]
    temporary: NDArray[np.float64]
    """[n, n] Bytes of a stage on the special device (see `Holding`)."""
    room: float


@compiled
def _count_better(
    labels: tuple[Ints, Floats, Ints], place: tuple[int, int, int], goes: tuple[float, float, float, int], most: int
) -> int:
    """Return how many labels, up to `most`, are as good as a new one in load, bytes, delay, and devices left."""
    (row, load, heads), (first, free, kind), (own, held, fill, group) = labels, place, goes
    # A label with more devices left, or that leaves the choice of the next kind open, is no worse for that.
    better = 0
    for more in range(free, heads.shape[1]):
        for side in range(kind + 1):
            other = heads[first, more, side]
            while other >= 0 and better < most:
                behind = row[other, 5] + 1
                better += (
                    load[other, 0] <= own
                    and load[other, 1] <= held
                    and (behind < group or (behind == group and load[other, 2] <= fill))
                )
                other = row[other, 6]
    return better


@compiled
def _drop_worse(
    labels: tuple[Ints, Floats, Ints], place: tuple[int, int, int], goes: tuple[float, float, float, int]
) -> None:
    """Unlink the labels of a place that a new one is as good as everywhere."""
    (row, load, heads), (first, free, kind), (own, held, fill, group) = labels, place, goes
    # Linked lists: to drop a label, its predecessor (or the head) points to the one behind it.
    before, other = -1, heads[first, free, kind]
    while other >= 0:
        behind, after = row[other, 5] + 1, row[other, 6]
        if (
            load[other, 0] >= own
            and load[other, 1] >= held
            and (behind > group or (behind == group and load[other, 2] >= fill))
        ):
            if before < 0:
                heads[first, free, kind] = after
            else:
                row[before, 6] = after
        else:
            before = other
        other = after


@compiled
def search_placements(
    z: PlacementTables, period: float, limits: tuple[int, int, int, int], cells: int, capacity: int
) -> tuple[Ints, Ints]:
    """Return labels (parent, first, last, special, in flight, ..) of stages first..last - 1, and the complete ones.

    `limits` are the normal devices, by how many micro-batches the special device is taken to hold less than g of a
    stage (-1: there is no such device), the micro-batches of a step, and how many labels beat one that goes. Load and
    bytes of the special device are rounded down to `cells` (0: not at all). There are `capacity` labels if that was
    too few.
    """
    normals, spare, microbatches, beaten = limits
    n, flying = z.link.size, z.normal.shape[2]
    # Sums in another order may exceed the period by rounding.
    top = period * (1 + 1e-12)
    # Label 0 is the end of the chain. Lists of labels by (layers left, normal devices left, next stage is special).
    row = np.zeros((capacity, 7), np.int64)
    load = np.zeros((capacity, 3), np.float64)  # of the special device, its bytes, and of the group
    heads = np.full((n + 1, normals + 1, 2), -1, np.int64)
    heads[n, normals, 0] = 0
    row[0, 0], row[0, 4], row[0, 6] = -1, 1, -1
    used = 1
    step_load = period / cells if cells else 0.0
    step_room = z.room / cells if cells else 0.0
    # From the last layer to the first: labels of layers last.. are complete when they are extended.
    for last in range(n, 0, -1):
        for left in range(normals, -1, -1):
            for beside in range(2):
                label = heads[last, left, beside]
                while label >= 0:
                    for first in range(last - 1, -1, -1):
                        # Longer stages only take longer: the first that exceeds the period ends the loop.
                        plain = z.plain[last] - z.plain[first]
                        if plain > top:
                            break
                        for kind in range(2):
                            if (left == 0) if kind == 0 else (beside == 1 or spare < 0):
                                continue
                            # The delay of a micro-batch is a group of the 1F1B* kind and its fill; the next group
                            # begins where it is full.
                            group, fill = row[label, 5] + 1, load[label, 2]
                            own, held = load[label, 0], load[label, 1]
                            seconds = plain if kind else z.normal[first, last - 1, min(group, flying) - 1]
                            if fill + seconds > top:
                                group, fill = group + 1, 0.0
                                seconds = plain if kind else z.normal[first, last - 1, min(group, flying) - 1]
                                if seconds > top:
                                    continue
                            fill += seconds
                            many = group
                            # On the special device load and bytes add up over its stages.
                            if kind:
                                own += plain
                                each = z.each[first, last - 1]
                                held += z.fixed[first, last - 1] + (min(group, microbatches) - spare) * each
                                if own > top or held + spare * each + z.temporary[first, last - 1] > z.room:
                                    continue
                                if cells:
                                    own = np.floor(own / step_load) * step_load
                                    held = np.floor(held / step_room) * step_room
                            # The layers before must fit on the devices that are left, whatever their memory.
                            free = left - 1 + kind
                            most = free * period + (0.0 if spare < 0 else period - own)
                            if z.plain[first] > most * (1 + 1e-9) or (first > 0 and free == 0 and kind):
                                continue
                            # The link to the stage before is part of a group, too.
                            if first:
                                if z.link[first] > top:
                                    continue
                                if fill + z.link[first] > top:
                                    group, fill = group + 1, 0.0
                                fill += z.link[first]
                            goes = (own, held, fill, group)
                            if _count_better((row, load, heads), (first, free, kind), goes, beaten) == beaten:
                                continue
                            # Labels that the new one beats are of no use, unless some that are beaten are wanted.
                            if beaten == 1:
                                _drop_worse((row, load, heads), (first, free, kind), goes)
                            # Too few labels: the caller tries again with more, or with a coarser grid.
                            if used == capacity:
                                return row, row[:0, 0]
                            row[used, 0], row[used, 1], row[used, 2] = label, first, last
                            row[used, 3], row[used, 4], row[used, 5] = kind, many, group - 1
                            row[used, 6] = heads[first, free, kind]
                            load[used, 0], load[used, 1], load[used, 2] = own, held, fill
                            heads[first, free, kind] = used
                            used += 1
                    label = row[label, 6]
    # Complete placements are the labels with no layers left, whatever devices they leave idle.
    ends = np.full(used, -1, np.int64)
    count = 0
    for left in range(normals + 1):
        for beside in range(2):
            label = heads[0, left, beside]
            while label >= 0:
                ends[count] = label
                count += 1
                label = row[label, 6]
    return row[:used], ends[:count]
