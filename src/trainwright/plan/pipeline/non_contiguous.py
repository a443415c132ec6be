"""MadPipe: stages on normal devices, one each, and on one special device that may have several apart from each other.

For a target period T a dynamic programme goes from the last layer to the first (Beaumont, Eyraud-Dubois, Shilova,
IPDPS 2022; here with labels in place of a grid). A label is what is placed so far: load and bytes of the special
device, and the group g of 1F1B* with its fill, which stand for the delay of a micro-batch since its forward left the
layers that remain. A stage's number in flight is its group. Of labels with the same layers and devices left, only
those are kept that no other beats in everything. The special device is taken to hold g - 1 micro-batches of each of
its stages, and one more of the stage whose backward ends.

That no valid pattern holds less makes the least T with a placement a bound on all placements with one special device,
found by bisection. Placements at targets from the bound up then get their least valid period (`period`, or 1F1B* if
they are contiguous), and the best is returned; T itself never is.
"""

import math
from dataclasses import dataclass

import numpy as np

from trainwright.kernels import Ints
from trainwright.model.chain import Chain
from trainwright.plan.pipeline.partition import Cost, WeightBytes, stage_holding
from trainwright.plan.pipeline.patterns import Pattern, PatternWork, least_period, one_forward_one_backward
from trainwright.plan.pipeline.period import valid_period

__all__ = ["PatternPlacement", "PlacedStage", "PlacementSearch", "place_contiguous", "place_madpipe"]

_CLOSE = 1e-6
_TARGETS = 8
_BEATEN = 3
"""Labels beaten by fewer than so many others are placed too: what beats one may have the longer valid period."""
_LABELS = ((0, 1 << 12), (0, 1 << 16), (0, 1 << 19), (200, 1 << 19), (50, 1 << 20))
"""Cells of the grid of the special device's load and bytes (0: none), and labels: the next where they are too few."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedStage:
    """A stage: layers first..last of the chain, from 1, on a device, counted in the order of the stages."""

    first: int
    last: int
    device: int
    seconds: float
    flying: int
    """Micro-batches in flight at its worst; on the special device by the delay alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternPlacement:
    """The stages of the best pattern found."""

    stages: tuple[PlacedStage, ...]
    pattern: Pattern
    rooms: tuple[int, ...]
    """Of each device, in the units of the pattern's works."""


def place_contiguous(search: "PlacementSearch") -> PatternPlacement | None:
    """Return the best placement with a stage a device; None if nothing fits."""
    high = search.alone * (1 + _CLOSE)
    if not search.placements(high, -1):
        return None
    low = search.least_target(-1, high)
    known = None
    for stages in search.placements(low * (1 + 2 * _CLOSE), -1):
        known = search.better(stages, known)
    return known


def place_madpipe(
    search: "PlacementSearch", known: PatternPlacement | None, *, limit_seconds: float = 10.0
) -> PatternPlacement | None:
    """Return the best placement found with one special device, or the known contiguous one if none is better.

    `limit_seconds` is for the least period of one placement.
    """
    high = search.alone * (1 + _CLOSE) if known is None else known.pattern.period_seconds
    if not search.placements(high, 1):
        return known
    # Targets from the bound up to the best period known; each placement gets its least valid period.
    low = search.least_target(1, high)
    tried = set()
    for step in range(_TARGETS):
        high = search.alone if known is None else known.pattern.period_seconds
        if high <= low * (1 + 3 * _CLOSE):
            break
        # Squares put most targets near the bound.
        target = low * (1 + 2 * _CLOSE) + (high - low) * (step / _TARGETS) ** 2
        # First count g - 1 micro-batches on the special device, the least that is valid, then g.
        for spare in (1, 0):
            for stages in search.placements(target, spare, _BEATEN):
                if stages not in tried:
                    tried.add(stages)
                    known = search.better(stages, known, limit_seconds)
    return known


class PlacementSearch:
    """The chain's tables for one cost of stages, and the placements tried."""

    def __init__(
        self, chain: Chain, cost: Cost, *, devices: int, microbatches: int, memory_bytes: int, bandwidth: float,
        weights: WeightBytes,
    ) -> None:  # fmt: skip
        from trainwright.plan.pipeline._non_contiguous import PlacementTables

        n = len(chain.stages)
        self.n, self.devices, self.microbatches, self.memory_bytes = n, devices, microbatches, memory_bytes
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

    def placements(self, period: float, spare: int, beaten: int = 1) -> list[tuple[PlacedStage, ...]]:
        """Return what the programme places for a period; without a special device if `spare` is -1."""
        from trainwright.plan.pipeline._non_contiguous import search_placements

        normals = self.devices - (spare >= 0)
        # Exact labels first; where there are too many, loads and bytes are rounded down to cells.
        for cells, capacity in _LABELS:
            limits = (normals, spare, self.microbatches, beaten)
            rows, ends = search_placements(self.tables, period, limits, cells, capacity)
            if len(rows) < capacity:
                break
        return [self._stages(rows, end) for end in ends]

    def _stages(self, rows: Ints, label: int) -> tuple[PlacedStage, ...]:
        found: list[PlacedStage] = []
        used: dict[int, int] = {}
        while rows[label, 0] >= 0:
            parent, first, last, special, flying = (int(each) for each in rows[label, :5])
            plain = float(self.tables.plain[last] - self.tables.plain[first])
            most = self.tables.normal.shape[2]
            seconds = plain if special else float(self.tables.normal[first, last - 1, min(flying, most) - 1])
            device = used.setdefault(0 if special else last, len(used))
            found.append(PlacedStage(first=first + 1, last=last, device=device, seconds=seconds, flying=flying))
            label = parent
        return tuple(found)

    def works(self, stages: tuple[PlacedStage, ...]) -> tuple[list[PatternWork], list[float], list[int]]:
        """Return a placement as `period` reads it: works, one-way links, and rooms."""
        shared = {each.device for each in stages if sum(other.device == each.device for other in stages) > 1}
        rooms = [self.memory_bytes] * self.devices
        most: list[list[float]] = [[] for _ in rooms]
        works = []
        for each in stages:
            at = each.first - 1, each.last - 1
            forward = float(self.forward[at[0] : each.last].sum())
            # The special device holds bytes of several stages; a normal one is bounded by its number of micro-batches.
            if each.device in shared:
                rooms[each.device] -= int(self.tables.fixed[at])
                most[each.device].append(self.tables.temporary[at])
                size = int(self.tables.each[at])
            else:
                # Seconds do not fall with the number in flight: as many fit as there are entries within them.
                size, fits = 1, self.tables.normal[at] <= each.seconds * (1 + 1e-12)
                # Where all of a step's micro-batches fit, any number does.
                rooms[each.device] = int(fits.sum()) if fits.sum() < self.microbatches else 1 << 30
            works.append(
                PatternWork(
                    device=each.device, forward_seconds=forward, backward_seconds=each.seconds - forward, each=size
                )
            )
        # Backwards of one device run in turn, so that it needs the largest temporaries once.
        rooms = [room - int(max(sizes, default=0)) for room, sizes in zip(rooms, most, strict=True)]
        return works, [self.one_way[each.first - 1] for each in stages[1:]], rooms

    def valid(self, stages: tuple[PlacedStage, ...], better_than: float, limit_seconds: float) -> Pattern | None:
        """Return the pattern of least period of a placement, if below `better_than`."""
        works, links, rooms = self.works(stages)
        if len({work.device for work in works}) == len(works):
            loads = [each.seconds for each in stages]
            found = least_period(
                loads, [2 * each for each in links], lambda stage, held: held <= rooms[stages[stage].device]
            )
            if found is None or found[0] >= better_than:
                return None
            return one_forward_one_backward(works, links, found[0])
        return valid_period(works, links, rooms, better_than=better_than, limit_seconds=limit_seconds).pattern

    def better(
        self, stages: tuple[PlacedStage, ...], known: PatternPlacement | None, limit_seconds: float = math.inf
    ) -> PatternPlacement | None:
        """Return the better of a placement and the known one."""
        limit = math.inf if known is None else known.pattern.period_seconds * (1 - _CLOSE)
        pattern = self.valid(stages, limit, limit_seconds)
        if pattern is None:
            return known
        return PatternPlacement(stages=stages, pattern=pattern, rooms=tuple(self.works(stages)[2]))

    def least_target(self, spare: int, high: float) -> float:
        """Return the least period for which the programme places all layers, from below, if it does for `high`."""
        # No period is below the mean load of the devices, or the largest layer.
        low = max(self.tables.plain[-1] / self.devices, *np.diff(self.tables.plain)) * (1 - _CLOSE)
        while high > low * (1 + _CLOSE):
            middle = (low + high) / 2
            low, high = (low, middle) if self.placements(middle, spare) else (middle, high)
        return float(low)
