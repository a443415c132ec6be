"""Searches the fastest pipeline: where to cut, which schedule and what to recompute, judged together.

A partition of least load need not have the least step, which also fills and empties the pipeline. So of short chains
all partitions are tried, of others those of least load; each may recompute what the memory cannot hold, and is placed
in time under each schedule that fits. What a schedule's order is does not depend on the memory, and more of it only
takes recomputation away: so no partition's step gets longer.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, combinations, product
from typing import get_args

from trainwright.model.chain import Chain, Stage
from trainwright.plan.pipeline.non_contiguous import PlacedParts, PlacementSearch, place_contiguous, place_madpipe
from trainwright.plan.pipeline.partition import (
    PATTERNS,
    ChainPartition,
    Cost,
    RematerialisationTables,
    StagePart,
    Way,
    WeightBytes,
    in_flight,
    partition_chain,
    parts_of,
    stage_holding,
    training_ways,
)
from trainwright.plan.pipeline.schedules import (
    Orders,
    PipelineTimeline,
    candidate_periods,
    deep_orders,
    group_stages,
    orders_of,
    repeating_orders,
    simulate_orders,
)

__all__ = ["PipelineCandidate", "PipelineProblem"]

_FINE = 64
"""Parts of a doubling of memory, to one of which the least is found."""
_ALL = 200
"""Partitions that are all tried; where there are more, those of least load are."""
_CONTIGUOUS = ("1f1b", "1f1b-star", "zero-bubble", "gpipe")
_LONGER = (1.0, 1.1)
"""Periods that are tried, over the load of the busiest device or link: a longer one may need less memory."""
Ends = tuple[int, ...]
"""The last layer of each stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineCandidate:
    """Stages, a step of them under a schedule, and the device of each."""

    partition: ChainPartition
    timeline: PipelineTimeline
    devices: tuple[int, ...]


class PipelineProblem:
    """A chain to be cut into `stages` for steps of so many micro-batches over links of so many bytes per second."""

    def __init__(self, chain: Chain, *, stages: int, microbatches: int, bandwidth: float, weights: WeightBytes) -> None:
        self.chain, self.stages, self.microbatches = chain, stages, microbatches
        self.bandwidth, self.weights = bandwidth, weights
        self._tables = RematerialisationTables(chain)
        self._costs: dict[int, dict[Way, Cost]] = {}
        self.search = cache(self._searched)

    def costs(self, memory_bytes: int) -> dict[Way, Cost]:
        """Return what a stage costs in each way to train it."""
        if memory_bytes not in self._costs:
            found = training_ways(
                self.chain, memory_bytes, weights=self.weights, microbatches=self.microbatches, tables=self._tables
            )
            self._costs[memory_bytes] = {way: cache(cost) for way, cost in found.items()}
        return self._costs[memory_bytes]

    def cut(self, memory_bytes: int, way: Way, *, every: bool = False) -> ChainPartition | None:
        """Return the partition of least load."""
        return partition_chain(
            self.chain, self.stages, self.costs(memory_bytes)[way], way=way, bandwidth=self.bandwidth,
            microbatches=self.microbatches, every=every,
        )  # fmt: skip

    def best(self, memory_bytes: int, patterns: Sequence[str] = PATTERNS) -> dict[str, PipelineCandidate]:
        """Return the least step of each schedule, by its name, of the patterns only these; nothing if nothing fits."""
        if memory_bytes < self.least_bytes:
            return {}
        found: dict[str, PipelineCandidate] = {}
        costs = self.costs(memory_bytes)
        partitions = list(dict.fromkeys(self._ends(memory_bytes)))
        for schedule in _CONTIGUOUS:
            if schedule in patterns or schedule not in PATTERNS:
                for ends in partitions:
                    if schedule not in PATTERNS and len(ends) != self.stages:
                        continue  # 1F1B* may leave devices idle
                    self._take(found, schedule, ends, costs)
        interleaved = self._interleaved(memory_bytes)
        if interleaved is not None:
            found["interleaved"] = interleaved
        if "madpipe" in patterns:
            tried = list(self._special(memory_bytes))
            tried += [found["1f1b-star"]] if "1f1b-star" in found else []  # no device need be special
            if tried:
                found["madpipe"] = min(tried, key=lambda each: each.timeline.seconds)
        return found

    @property
    def few(self) -> bool:
        """Whether all partitions are tried."""
        return math.comb(len(self.chain.stages) - 1, self.stages - 1) <= _ALL

    @cached_property
    def least_bytes(self) -> int:
        """The least memory with a partition, to a percent."""
        # Bisection over a geometric scale of memories.
        low, high = 0, math.ceil(_FINE * math.log2(self._top)) + 1  # feasible, and not
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.cut(self._level(middle), "planned") is not None
            low, high = (middle, high) if fits else (low, middle)
        return self._level(low)

    def _level(self, parts: int) -> int:
        return math.ceil(self._top * float(2.0 ** (-parts / _FINE)))

    @cached_property
    def _top(self) -> int:
        """Bytes in which everything fits, and nothing need be recomputed."""
        whole = stage_holding(self.chain, 1, len(self.chain.steps), weights=self.weights)
        most = max(stage.output_bytes for stage in self.chain.stages)
        return whole.fixed + self.microbatches * (whole.each + most) + whole.temporary + 4 * most + 1

    def _halves(self, memory_bytes: int) -> list[int]:
        """Return memories at which stages are placed: all that depend on the chain alone, or the last and this one."""
        levels, level = [self.least_bytes], self._top
        while level > self.least_bytes:
            levels.append(level)
            level = -(-level // 2)
        below = sorted(each for each in levels if each <= memory_bytes)
        return below if self.few else list(dict.fromkeys([*below[-1:], min(memory_bytes, self._top)]))

    def _ends(self, memory_bytes: int) -> Iterator[Ends]:
        """Yield partitions by where they end."""
        layers, kinds = len(self.chain.stages), get_args(Way)
        if self.few:
            yield from ((*inner, layers) for inner in combinations(range(1, layers), self.stages - 1))
            return
        # Long chains: the partitions of least load, with memory counted for 1F1B and for all micro-batches, by each
        # way.
        for level in self._halves(memory_bytes):
            for every in (False, True):
                for way in kinds:
                    found = self.cut(level, way, every=every)
                    if found is not None:
                        yield tuple(part.last for part in found.parts)
        for parts, _ in place_contiguous(self.search(min(memory_bytes, self._top))):
            yield tuple(part.last for part in parts)

    def _take(self, found: dict[str, PipelineCandidate], schedule: str, ends: Ends, costs: dict[Way, Cost]) -> None:
        """Keep the step of a partition if it is the schedule's least so far; it recomputes what does not fit."""
        for flying in self._flying(schedule, ends):
            parts = parts_of(self.chain, ends, costs["planned"], flying, self.bandwidth)
            known = found.get(schedule)
            # A lower bound of the step saves placing most partitions in time.
            if parts is None or (known is not None and self._least(parts, schedule) >= known.timeline.seconds):
                continue
            back = [self._backward(part) for part in parts]
            timelines = [
                self._placed_in_time(order, parts, back) for order in self._orders(schedule, parts, back, flying)
            ]
            timeline = min(timelines, key=lambda each: each.seconds)
            if known is None or timeline.seconds < known.timeline.seconds:
                load = max(*(part.seconds for part in parts), *(part.link_seconds for part in parts))
                partition = ChainPartition(parts=parts, load_seconds=load, way=_way(parts, costs))
                found[schedule] = PipelineCandidate(
                    partition=partition, timeline=timeline, devices=tuple(range(len(parts)))
                )

    def _flying(self, schedule: str, ends: Ends) -> list[list[int]]:
        """Return how many micro-batches each stage may have in flight; under 1F1B* by the groups of its periods."""
        if schedule not in PATTERNS:
            return [
                [in_flight(schedule, stage=each, stages=self.stages, microbatches=self.microbatches)
                 for each in range(self.stages)]
            ]  # fmt: skip
        # Groups follow from the loads of stages that recompute nothing.
        free = parts_of(
            self.chain, ends, lambda first, last, _: self._plain(first, last), [1] * len(ends), self.bandwidth
        )
        assert free is not None  # noqa: S101  nothing is infinite
        loads, links = [part.seconds for part in free], [part.link_seconds for part in free[:-1]]
        found = [group_stages(loads, links, period) for period in candidate_periods(loads, links)]
        return [list(each) for each in dict.fromkeys(
            tuple(min(held, self.microbatches) for held in group) for group in found if group is not None
        )]  # fmt: skip

    def _least(self, parts: Sequence[StagePart], schedule: str) -> float:
        """Return what a step takes at least: a stage waits for its first input, and the first stage for its last."""
        least, before = 0.0, 0.0
        for part in parts:
            least = max(least, before + self.microbatches * part.seconds)
            before += (part.forward_seconds if schedule == "zero-bubble" else part.seconds) + part.link_seconds / (
                2 if schedule == "zero-bubble" else 1
            )
        return least

    def _orders(
        self, schedule: str, parts: Sequence[StagePart], back: Sequence[float], flying: Sequence[int] | None = None
    ) -> list[Orders]:
        """Return the orders of a schedule, for stages that recompute nothing."""
        if schedule in PATTERNS and flying is not None:
            return [deep_orders(flying, self.microbatches)]
        return orders_of(
            schedule, [part.forward_seconds for part in parts], back, microbatches=self.microbatches,
            link_seconds=[part.link_seconds / 2 for part in parts[:-1]], devices=self.stages,
            weight_seconds=[each / 2 for each in back],
        )  # fmt: skip

    def _placed_in_time(self, orders: Orders, parts: Sequence[StagePart], back: Sequence[float]) -> PipelineTimeline:
        """Place an order in time; recomputation is part of the backward, and nothing of it can be deferred."""
        return simulate_orders(
            orders,
            [part.forward_seconds for part in parts],
            [part.seconds - part.forward_seconds for part in parts],
            [part.link_seconds / 2 for part in parts[:-1]],
            weight_seconds=[each / 2 for each in back],
        )

    def _backward(self, part: StagePart) -> float:
        return sum(each.backward_seconds for each in self._steps(part.first, part.last))

    def _plain(self, first: int, last: int) -> float:
        return sum(each.forward_seconds + each.backward_seconds for each in self._steps(first, last))

    def _steps(self, first: int, last: int) -> tuple[Stage, ...]:
        return self.chain.steps[first - 1 : len(self.chain.steps) if last == len(self.chain.stages) else last]

    def _interleaved(self, memory_bytes: int) -> PipelineCandidate | None:
        """Return a step of two chunks a device that recompute nothing, if the devices can hold what it does."""
        layers, count = len(self.chain.stages), 2 * self.stages
        if self.stages == 1 or self.microbatches % self.stages or count > layers:
            return None
        partition = self._chunks
        parts = partition.parts
        back = [self._backward(part) for part in parts]
        (orders,) = self._orders("interleaved", parts, back)
        timeline = self._placed_in_time(orders, parts, back)
        flying = self._most_flying(parts, orders, memory_bytes)
        if flying is None:
            return None
        parts = tuple(replace(part, flying=many) for part, many in zip(parts, flying, strict=True))
        devices = tuple(chunk % self.stages for chunk in range(count))
        return PipelineCandidate(partition=replace(partition, parts=parts), timeline=timeline, devices=devices)

    @cached_property
    def _chunks(self) -> ChainPartition:
        """Two chunks a device, of least load whatever their memory."""
        cost = self.costs(1 << 62)["none"]
        found = partition_chain(
            self.chain, 2 * self.stages, cost, way="none", bandwidth=self.bandwidth, microbatches=self.microbatches
        )
        assert found is not None  # noqa: S101  everything fits
        return found

    def _searched(self, memory_bytes: int) -> PlacementSearch:
        """Return what searches patterns in a memory."""
        return PlacementSearch(
            self.chain, self.costs(memory_bytes)["planned"], devices=self.stages, microbatches=self.microbatches,
            memory_bytes=memory_bytes, bandwidth=self.bandwidth, weights=self.weights,
        )  # fmt: skip

    def _special(self, memory_bytes: int) -> Iterator[PipelineCandidate]:
        """Yield steps with one special device that fit."""
        for level in self._halves(memory_bytes) if self.few else [min(memory_bytes, self._top)]:
            for placed in place_madpipe(self.search(level)):
                yield from self._on_devices(placed, level)

    def _on_devices(self, placed: PlacedParts, memory_bytes: int) -> Iterator[PipelineCandidate]:
        """Yield steps of stages of which one device may have several, that it can hold."""
        parts, devices = placed
        loads = [sum(part.seconds for part, of in zip(parts, devices, strict=True) if of == each) for each in devices]
        load = max(*loads, *(part.link_seconds for part in parts))
        forward, back = (
            [part.forward_seconds for part in parts],
            [part.seconds - part.forward_seconds for part in parts],
        )
        links = [part.link_seconds / 2 for part in parts[:-1]]
        for period, packed in product(((load or 1.0) * longer for longer in _LONGER), (False, True)):
            orders = repeating_orders(
                devices, forward, back, links, microbatches=self.microbatches, period=period, packed=packed
            )
            flying = None if orders is None else self._most_flying(parts, orders, memory_bytes)
            if orders is not None and flying is not None:
                timeline = simulate_orders(orders, forward, back, links)
                held = tuple(replace(part, flying=many) for part, many in zip(parts, flying, strict=True))
                partition = ChainPartition(parts=held, load_seconds=load, way="planned")
                yield PipelineCandidate(partition=partition, timeline=timeline, devices=devices)

    def _most_flying(self, parts: Sequence[StagePart], orders: Orders, memory_bytes: int) -> list[int] | None:
        """Return the micro-batches in flight of each stage at most; None if a device cannot hold what it has."""
        flying = [0] * len(parts)
        for lane in orders:
            own = {stage: parts[stage] for stage in dict.fromkeys(stage for _, stage, _ in lane)}
            for stage in own:
                flying[stage] = max(accumulate(1 if kind == "F" else -1 for kind, of, _ in lane if of == stage))
            # A stage with a device of its own may recompute, and was given what it holds; others share theirs.
            alone = len(own) == 1 and all(flying[stage] <= part.flying for stage, part in own.items())
            if not alone and (len(own) == 1 or self._held_bytes(own, lane) > memory_bytes):
                return None
        return flying

    def _held_bytes(self, parts: Mapping[int, StagePart], lane: Sequence[tuple[str, int, int]]) -> int:
        """Return the most bytes of a device with these stages, which recompute nothing, in the order of its work."""
        layers = len(self.chain.stages)
        held = {
            stage: stage_holding(
                self.chain, part.first, layers + 1 if part.last == layers else part.last, weights=self.weights
            )
            for stage, part in parts.items()
        }
        most = max(accumulate(held[stage].each * (1 if kind == "F" else -1) for kind, stage, _ in lane))
        return sum(each.fixed for each in held.values()) + most + max(each.temporary for each in held.values())


def _way(parts: Sequence[StagePart], costs: dict[Way, Cost]) -> Way:
    """Return the simplest way to train that is what the stages do."""
    ways: tuple[Way, ...] = ("none", "full")
    for way in ways:
        if all(costs[way](part.first, part.last, part.flying) == part.seconds for part in parts):
            return way
    return "planned"
