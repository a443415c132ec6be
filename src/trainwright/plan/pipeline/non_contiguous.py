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

import numpy as np

from trainwright.kernels import Ints
from trainwright.model.chain import Chain
from trainwright.plan.pipeline.partition import Cost, StagePart, WeightBytes, stage_holding

__all__ = ["PlacedParts", "PlacementSearch", "place_contiguous", "place_madpipe"]

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
        from trainwright.plan.pipeline._non_contiguous import PlacementTables

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
        from trainwright.plan.pipeline._non_contiguous import search_placements

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
