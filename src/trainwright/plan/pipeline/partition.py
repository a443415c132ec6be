"""Partitions a chain into pipeline stages: balances load on stages and links within each device's memory.

A(i, p), the best of layers i.. in p parts, is the least over ends j of the larger of the load of i..j-1 and
A(j, p - 1); of equal choices the part that ends first (PipeDream, SOSP 2019). The load of a part is that of its stage
or of the link behind it, with the true number of micro-batches in flight: the stage that has p - 1 behind it holds
min(p, m). O(L^2 P) given the loads. The load of a stage comes from one of three ways to train it:

- "none": nothing is recomputed;
- "full": only the inputs of micro-batches in flight are held, everything is recomputed in the backward;
- "planned": a table of the chain says how much is best held between a micro-batch's forward and its backward, and
  what the backward then has to recompute, in the memory that is left (below).

The forward of a micro-batch is far from its backward; the bytes k that it holds in between count once for every
micro-batch in flight. D(s,t,m,k) is the least time of layers s..t with m slots while one micro-batch runs and at most
k slots of it held across the gap:

    stop:   plain forwards s..t + C(s,t,m)                                       nothing but the input is held
    split:  plain forwards s..s'-1 + D(s',t, m - w_a[s'-1], k - w_a[s'-1]) + C(s, s'-1, m)
    keep:   forward_s + D(s+1,t, m - w_saved[s], k - w_saved[s]) + backward_s

with the limits of C, the table of `persistent` over the whole chain, which every stage shares. A stage with g
micro-batches in flight takes the least over k of D(s, t, room - (g - 1) k, k). Slots are powers of two of bytes, the
least in which the room has no more than the most slots, and all slots of the half beside: what fits into so many small
slots fits into as many large ones, so that more room is never slower.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import PipelineError
from trainwright.kernels import Floats, Ints
from trainwright.model.chain import Chain
from trainwright.plan.memory.persistent import PersistentTable
from trainwright.plan.memory.sizes import sizes_of
from trainwright.validators import check, integer, one_of

__all__ = [
    "PATTERNS",
    "PLANNED",
    "SCHEDULES",
    "ChainPartition",
    "Cost",
    "RematerialisationTables",
    "StageHolding",
    "StagePart",
    "Way",
    "WeightBytes",
    "check_schedule",
    "in_flight",
    "least_load_partitions",
    "partition_chain",
    "parts_of",
    "shortest_longest_parts",
    "stage_bytes",
    "stage_holding",
    "training_ways",
]

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
PATTERNS = ("1f1b-star", "madpipe")
"""Orders that are patterns of a period (1F1B*, MadPipe), which have placements of their own."""
PLANNED = ("auto", *SCHEDULES, *PATTERNS)
"""Schedules that a plan may be for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightBytes:
    """Copies of the parameters' bytes that a stage holds, and a divisor where others share them (ZeRO)."""

    copies: float = 2.0
    """Flush schedules 2 (weight and gradient), weight stashing 3; an optimizer adds its own (Adam 2 in fp32)."""
    shared_by: int = 1


def check_schedule(name: str, known: tuple[str, ...] = SCHEDULES) -> None:
    """Raise PipelineError for an unknown schedule."""
    check(name, one_of(*known), "schedule", PipelineError)


def in_flight(schedule: str, *, stage: int, stages: int, microbatches: int) -> int:
    """Return the micro-batches whose saved values a stage (from 0) holds at its worst, one chunk a stage."""
    check_schedule(schedule)
    return microbatches if schedule == "gpipe" else min(microbatches, stages - stage)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageHolding:
    """Bytes of a stage that recomputes nothing: always there, of each micro-batch in flight, while a backward runs."""

    fixed: int
    """Weights, and the buffers to receive and send on both borders (two each)."""
    each: int
    """Saved values and the input."""
    temporary: int
    """The largest temporaries of a backward, which stages of one device need one at a time."""


def stage_holding(chain: Chain, first: int, last: int, *, weights: WeightBytes) -> StageHolding:
    """Return what layers first..last (from 1) hold; the loss is one more layer."""
    layers = chain.steps[first - 1 : last]
    borders = 2 * (input_bytes(chain, first) + (layers[-1].output_bytes if last < len(chain.stages) else 0))
    return StageHolding(
        fixed=weight_bytes(chain, first, last, weights) + borders,
        each=sum(layer.saved_bytes for layer in layers) + input_bytes(chain, first),
        temporary=max(0, *(layer.backward_temporary_bytes for layer in layers)),
    )


def stage_bytes(chain: Chain, first: int, last: int, *, flying: int, weights: WeightBytes) -> int:
    """Return the peak bytes of layers first..last (from 1) with `flying` micro-batches, nothing recomputed."""
    held = stage_holding(chain, first, last, weights=weights)
    return held.fixed + flying * held.each + held.temporary


def weight_bytes(chain: Chain, first: int, last: int, weights: WeightBytes) -> int:
    """Return the bytes of parameters, gradients and optimizer state of layers first..last."""
    parameters = sum(layer.parameter_bytes for layer in chain.steps[first - 1 : last])
    return int(-(-weights.copies * parameters // weights.shared_by))


def input_bytes(chain: Chain, first: int) -> int:
    """Return the bytes that the stage that begins at a layer receives; none for the first, whose input is loaded."""
    return chain.steps[first - 2].output_bytes if first > 1 else 0


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


_SLOTS = 120
Way = Literal["none", "full", "planned"]
Cost = Callable[[int, int, int], float]
"""(first layer, last layer, micro-batches in flight) -> seconds of a micro-batch, inf if it does not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePart:
    """One pipeline stage: layers first..last of the chain, counted from 1."""

    first: int
    last: int
    seconds: float
    """Of one micro-batch, forward, recomputation and backward."""
    forward_seconds: float
    flying: int
    link_seconds: float
    """To hand one micro-batch's output on, and its gradient back, over a shared link."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainPartition:
    """Stages in order; `load_seconds` is the busiest stage's or link's, and the least possible period."""

    parts: tuple[StagePart, ...]
    load_seconds: float
    way: Way


def partition_chain(
    chain: Chain, stages: int, cost: Cost, *, way: Way, bandwidth: float, microbatches: int, every: bool = False
) -> ChainPartition | None:
    """Return the partition of least load, or None if none fits; with `every` micro-batch in flight, as under GPipe."""
    layers = len(chain.stages)
    check(stages, integer(minimum=1, maximum=layers), "stages", PipelineError)
    check(microbatches, integer(minimum=1), "microbatches", PipelineError)
    flying = {left: microbatches if every else min(left, microbatches) for left in range(1, stages + 1)}
    # Twice: an output on its way there, and its gradient on the way back.
    links = [2 * chain.stages[i - 1].output_bytes / bandwidth if i < layers else 0.0 for i in range(1, layers + 1)]

    def best_ends(rest: Floats, left: int) -> tuple[Floats, Ints]:
        loads, ends = np.full(layers + 1, np.inf), np.zeros(layers + 1, np.int64)
        for first in range(1, layers + 1):
            for last in range(first, layers + 1):
                # Neither the rest nor the link can get better by another cost of this stage.
                least = max(rest[last], links[last - 1])
                if least < loads[first - 1]:
                    load = max(cost(first, last, flying[left]), least)
                    if load < loads[first - 1]:
                        loads[first - 1], ends[first - 1] = load, last
        return loads, ends

    load, ends = least_load_partitions(layers, stages, best_ends)[-1]
    if math.isinf(load):
        return None
    parts = parts_of(chain, ends, cost, [flying[left] for left in range(stages, 0, -1)], bandwidth)
    return None if parts is None else ChainPartition(parts=parts, load_seconds=load, way=way)


def parts_of(
    chain: Chain, ends: Sequence[int], cost: Cost, flying: Sequence[int], bandwidth: float
) -> tuple[StagePart, ...] | None:
    """Return the stages that end with these layers, None if one does not fit."""
    parts, first, layers = [], 1, len(chain.stages)
    for last, many in zip(ends, flying, strict=True):
        seconds = cost(first, last, many)
        if math.isinf(seconds):
            return None
        end = len(chain.steps) if last == layers else last
        parts.append(
            StagePart(
                first=first,
                last=last,
                seconds=seconds,
                forward_seconds=sum(layer.forward_seconds for layer in chain.steps[first - 1 : end]),
                flying=many,
                link_seconds=2 * chain.stages[last - 1].output_bytes / bandwidth if last < layers else 0.0,
            )
        )
        first = last + 1
    return tuple(parts)


class RematerialisationTables:
    """D of a chain for slots of every size, made when they are first asked for; the loss goes with the last layer."""

    def __init__(self, chain: Chain) -> None:
        self._sizes, self._layers, self._steps = sizes_of(chain), len(chain.stages), len(chain.steps)
        self._persistent = cache(lambda unit: PersistentTable(chain, unit=unit, slots=_SLOTS))
        self._rows = cache(self._across)

    def seconds(self, first: int, last: int, flying: int, room: int) -> float:
        """Return the least time of layers first..last for a micro-batch of so many in flight; inf if none fits."""
        if room < 0:
            return math.inf
        # The least power of two of which the room has no more than _SLOTS.
        unit = 1 << (room // (_SLOTS + 1)).bit_length()
        found = self._least(first, last, flying, unit, room // unit)
        return found if unit == 1 else min(found, self._least(first, last, flying, unit // 2, _SLOTS))

    def _least(self, first: int, last: int, flying: int, unit: int, slots: int) -> float:
        # For each k: the micro-batch that runs has what the others, k slots each, leave.
        held = np.arange(slots // flying + 1)
        return float(self._rows(unit, last)[first - 1][slots - (flying - 1) * held, held].min())

    def _across(self, unit: int, last: int) -> NDArray[np.float32]:
        """D(s, last, m, k) for all s, with k in slots."""
        from trainwright.plan.memory._dynamic_programs import fill_across

        end = self._steps if last == self._layers else last
        return fill_across(self._sizes, self._persistent(unit).table, end - 1, (unit, unit - 1, _SLOTS))


def training_ways(
    chain: Chain,
    memory_bytes: int,
    *,
    weights: WeightBytes,
    microbatches: int,
    tables: RematerialisationTables | None = None,
) -> dict[Way, Cost]:
    """Return what a stage costs in each way to train it, within a device's memory; the last stage has the loss.

    `tables` of the chain may be shared by calls.
    """
    layers = len(chain.stages)

    def end_of(last: int) -> int:
        return len(chain.steps) if last == layers else last

    @cache
    def stage(first: int, last: int) -> tuple[StageHolding, float, float]:
        """Return what a stage holds, its seconds, and those of recomputing it."""
        inside = chain.steps[first - 1 : end_of(last)]
        return (
            stage_holding(chain, first, end_of(last), weights=weights),
            sum(each.forward_seconds + each.backward_seconds for each in inside),
            sum(each.no_grad_seconds for each in inside),
        )

    def none(first: int, last: int, flying: int) -> float:
        held, seconds, _ = stage(first, last)
        return seconds if held.fixed + flying * held.each + held.temporary <= memory_bytes else math.inf

    def full(first: int, last: int, flying: int) -> float:
        held, seconds, again = stage(first, last)
        # The micro-batch in work has everything saved, the others their inputs alone.
        needed = held.fixed + held.each + held.temporary + (flying - 1) * input_bytes(chain, first)
        return seconds + again if needed <= memory_bytes else math.inf

    # What recomputes just enough comes from one table over the whole chain.
    known = tables or RematerialisationTables(chain)

    def planned(first: int, last: int, flying: int) -> float:
        # What is left of the memory for the saved values of all micro-batches in flight.
        room = memory_bytes - stage(first, last)[0].fixed - flying * input_bytes(chain, first)
        return known.seconds(first, last, flying, room) if flying <= microbatches else math.inf

    optional = any(stage.options for stage in chain.steps)

    def best(first: int, last: int, flying: int) -> float:
        plain = none(first, last, flying)
        if plain < math.inf and not optional:
            return plain  # nothing is faster than what recomputes nothing
        return min(plain, full(first, last, flying), planned(first, last, flying))

    return {"none": none, "full": full, "planned": best}
