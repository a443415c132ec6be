"""MadPipe: one stage on each normal device, and several non-adjacent ones on one special device.

For a target period T a dynamic programme goes from the last layer to the first (Beaumont, Eyraud-Dubois, Shilova,
IPDPS 2022; here with labels in place of a grid). A label is what is placed so far: load and bytes of the special
device, and the group g of 1F1B* with its fill, which stand for the delay of a micro-batch since its forward left the
layers that remain. A stage's number in flight is its group. Of labels with the same layers and devices left, only
those are kept that no other beats in everything. The special device is taken to hold g - 1 micro-batches of each of
its stages, and one more of the stage whose backward ends.

No valid pattern holds less, so the least T with a placement is a bound on the periods of all placements with one
special device; it is found by bisection. Placements at targets from there up are placed in time by `pipeline_search`.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.kernels import Floats, Ints, compiled
from trainwright.model.chain import Chain
from trainwright.plan.pipeline.partition import Cost, StagePart, WeightBytes, stage_holding

__all__ = [
    "PlacedParts",
    "PlacementSearch",
    "PlacementTables",
    "place_contiguous",
    "place_madpipe",
    "search_placements",
]


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


_CLOSE = 1e-6
_TARGETS = 8
_BEATEN = 3
"""Labels beaten by fewer than so many others are placed too: what beats one may have the longer step."""
_MOST = 24
"""Placements of a target that are looked at."""
_LABELS = ((0, 1 << 12), (0, 1 << 16), (0, 1 << 19), (200, 1 << 19), (50, 1 << 20))
"""Cells of the grid of the special device's load and bytes (0: none), and labels: the next where they are too few."""
PlacedParts = tuple[tuple[StagePart, ...], tuple[int, ...]]
"""Stages, and the device of each, counted in the order of the stages."""


def place_contiguous(search: "PlacementSearch") -> list[PlacedParts]:
    """Return the placements of least target with a stage a device; none if nothing fits."""
    high = search.alone * (1 + _CLOSE)
    if not search.placements(high, -1):
        return []
    return search.placements(search.least_target(-1, high) * (1 + 2 * _CLOSE), -1)


def place_madpipe(search: "PlacementSearch") -> Iterator[PlacedParts]:
    """Yield placements with one special device, from the least target up to that of contiguous ones."""
    high = search.alone * (1 + _CLOSE)
    if not search.placements(high, 1):
        return
    if search.placements(high, -1):
        high = search.least_target(-1, high)
    low = search.least_target(1, high)
    tried = set()
    for step in range(_TARGETS):
        # Squares put most targets near the bound.
        target = low * (1 + 2 * _CLOSE) + (high - low) * (step / _TARGETS) ** 2
        # First count g - 1 micro-batches on the special device, the least that is valid, then g.
        for spare in (1, 0):
            for placed in search.placements(target, spare, _BEATEN)[:_MOST]:
                if placed not in tried:
                    tried.add(placed)
                    yield placed


class PlacementSearch:
    """The chain's tables for one cost of stages, and the placements tried."""

    def __init__(
        self, chain: Chain, cost: Cost, *, devices: int, microbatches: int, memory_bytes: int, bandwidth: float,
        weights: WeightBytes,
    ) -> None:  # fmt: skip
        n = len(chain.stages)
        self.n, self.devices, self.microbatches = n, devices, microbatches
        self.forward = np.zeros(n)
        plain = np.zeros(n)
        for layer, step in enumerate(chain.steps):
            place = min(layer, n - 1)  # the loss belongs to the last layer
            self.forward[place] += step.forward_seconds
            plain[place] += step.forward_seconds + step.backward_seconds
        self.one_way = [0.0, *(stage.output_bytes / bandwidth for stage in chain.stages[:-1])]
        # P - 1 normal stages and P between them on the special device, with their links, are 4 P - 3 groups at most.
        most = min(microbatches, 4 * devices - 3)
        normal = np.full((n, n, most), np.inf)
        sizes = np.zeros((3, n, n))
        for first in range(n):
            for last in range(first, n):
                held = stage_holding(chain, first + 1, last + 1 + (last == n - 1), weights=weights)
                sizes[:, first, last] = held.fixed, held.each, held.temporary
                # A stage on a device of its own may recompute; its cost grows with the micro-batches in flight.
                for flying in range(1, most + 1):
                    seconds = cost(first + 1, last + 1, flying)
                    if math.isinf(seconds):
                        break
                    normal[first, last, flying - 1] = seconds
        self.tables = PlacementTables(
            plain=np.concatenate([[0.0], np.cumsum(plain)]),
            link=2 * np.array(self.one_way),
            # What can be done with more in flight can be done with fewer.
            normal=np.minimum.accumulate(normal[:, :, ::-1], axis=2)[:, :, ::-1].copy(),
            fixed=sizes[0],
            each=sizes[1],
            temporary=sizes[2],
            room=float(memory_bytes),
        )
        longest = float(normal[np.isfinite(normal)].max(initial=0.0))
        self.alone = max(float(self.tables.plain[-1]), devices * longest) + float(self.tables.link.sum())
        """Seconds in which one micro-batch is through, whatever the placement."""

    def placements(self, period: float, spare: int, beaten: int = 1) -> list[PlacedParts]:
        """Return what the programme places for a period; without a special device if `spare` is -1."""
        normals = self.devices - (spare >= 0)
        # Exact labels first; where there are too many, loads and bytes are rounded down to cells.
        for cells, capacity in _LABELS:
            limits = (normals, spare, self.microbatches, beaten)
            rows, ends = search_placements(self.tables, period, limits, cells, capacity)
            if len(rows) < capacity:
                break
        return [self._placed(rows, end) for end in ends]

    def _placed(self, rows: Ints, label: int) -> PlacedParts:
        parts: list[StagePart] = []
        devices: list[int] = []
        used: dict[int, int] = {}
        most = self.tables.normal.shape[2]
        while rows[label, 0] >= 0:
            label, first, last, special, flying = (int(each) for each in rows[label, :5])
            seconds = float(self.tables.plain[last] - self.tables.plain[first])
            if not special:
                # More may be in flight than the group says, where that costs nothing.
                costs = self.tables.normal[first, last - 1]
                seconds = float(costs[min(flying, most) - 1])
                flying = max(flying, int((costs <= seconds * (1 + 1e-12)).sum()))
                flying = self.microbatches if flying == most else flying
            devices.append(used.setdefault(0 if special else last, len(used)))
            parts.append(
                StagePart(
                    first=first + 1,
                    last=last,
                    seconds=seconds,
                    forward_seconds=float(self.forward[first:last].sum()),
                    flying=min(flying, self.microbatches),
                    link_seconds=2 * self.one_way[last] if last < self.n else 0.0,
                )
            )
        return tuple(parts), tuple(devices)

    def least_target(self, spare: int, high: float) -> float:
        """Return the least period for which the programme places all layers, from below, if it does for `high`."""
        # No period is below the mean load of the devices, or the largest layer.
        low = max(self.tables.plain[-1] / self.devices, *np.diff(self.tables.plain)) * (1 - _CLOSE)
        while high > low * (1 + _CLOSE):
            middle = (low + high) / 2
            low, high = (low, middle) if self.placements(middle, spare) else (middle, high)
        return float(low)
