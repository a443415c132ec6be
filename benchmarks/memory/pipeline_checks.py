"""Checks of pipelines: what a pattern does that it must not, schedules placed in time, and their closed form."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from benchmarks.memory.patterns import Pattern

from trainwright.plan.pipeline.schedules import PipelineTimeline, orders_of, simulate_orders

__all__ = ["bubble_share", "latency_seconds", "pattern_breaches", "simulate_schedule"]

_SLACK = 1e-6
"""Of a period: by so much a pattern that floating point or an integer programme made may overlap."""


def bubble_share(*, stages: int, microbatches: int, chunks: int = 1) -> float:
    """Return the idle share of equal stages under GPipe or 1F1B, or interleaved with `chunks` a device."""
    return (stages - 1) / (chunks * microbatches + stages - 1)


def simulate_schedule(
    schedule: str,
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    *,
    microbatches: int,
    link_seconds: Sequence[float] | None = None,
    devices: int | None = None,
    weight_seconds: Sequence[float] | None = None,
) -> PipelineTimeline:
    """Place a step in time. Sequences are per chunk; `link_seconds[c]` is one way between chunks c and c + 1.

    Chunks are as many as devices, or (interleaved) a multiple, with micro-batches a multiple of the devices.
    `weight_seconds` are the parts of the backwards that zero-bubble defers, by default half of each.
    """
    chunks = len(forward_seconds)
    links = list(link_seconds)[: chunks - 1] if link_seconds is not None else [0.0] * (chunks - 1)
    weights = [each / 2 for each in backward_seconds] if weight_seconds is None else list(weight_seconds)
    found = [
        simulate_orders(orders, forward_seconds, backward_seconds, links, weight_seconds=weights)
        for orders in orders_of(
            schedule, forward_seconds, backward_seconds, microbatches=microbatches, link_seconds=links,
            devices=devices or chunks, weight_seconds=weights,
        )
    ]  # fmt: skip
    return min(found, key=lambda each: each.seconds)


def latency_seconds(pattern: Pattern) -> float:
    """Return the seconds from a micro-batch's first forward to the end of its last backward."""
    return pattern.backward_starts[0] + pattern.works[0].backward_seconds - pattern.forward_starts[0]


def pattern_breaches(pattern: Pattern, rooms: Sequence[int]) -> list[str]:
    """Return what a pattern does that it must not, micro-batches unrolled one by one; `rooms` are those of devices."""
    count = 2 + (math.ceil(latency_seconds(pattern) / pattern.period_seconds) if pattern.period_seconds else 0)
    slack = _SLACK * pattern.period_seconds
    found = list(_late_reads(pattern, slack))
    lanes: dict[str, list[tuple[float, float]]] = {}
    changes: list[list[tuple[float, int]]] = [[] for _ in rooms]
    for batch in range(count):
        at = batch * pattern.period_seconds
        for stage, work in enumerate(pattern.works):
            lane = lanes.setdefault(f"device {work.device}", [])
            begin, back = pattern.forward_starts[stage] + at, pattern.backward_starts[stage] + at
            lane += [(begin, begin + work.forward_seconds), (back, back + work.backward_seconds)]
            changes[work.device] += [(begin + slack, work.each), (back + work.backward_seconds - slack, -work.each)]
        for stage, seconds in enumerate(pattern.links):
            starts = (pattern.send_starts[stage] + at, pattern.return_starts[stage] + at)
            lanes.setdefault(f"link {stage}", []).extend((start, start + seconds) for start in starts)
    for name, lane in lanes.items():
        lane.sort()
        latest = -math.inf
        for start, end in lane:
            if end > start and start < latest - slack:
                found.append(f"{name}: work at {start:g} begins before {latest:g}")
            latest = max(latest, end)
    for device, row in enumerate(changes):
        held = 0
        for _, change in sorted(row):
            held += change
            if held > rooms[device]:
                found.append(f"device {device}: holds {held} of {rooms[device]}")
                break
    return found


def _late_reads(pattern: Pattern, slack: float) -> Iterator[str]:
    """Yield work of a micro-batch that does not wait for what it needs."""
    last = len(pattern.works) - 1
    row: list[tuple[str, float, float]] = []
    for stage, work in enumerate(pattern.works):
        row.append((f"forward of stage {stage}", pattern.forward_starts[stage], work.forward_seconds))
        if stage < last:
            row.append((f"output of stage {stage}", pattern.send_starts[stage], pattern.links[stage]))
    for stage in range(last, -1, -1):
        if stage < last:
            row.append((f"gradient for stage {stage}", pattern.return_starts[stage], pattern.links[stage]))
        row.append(
            (f"backward of stage {stage}", pattern.backward_starts[stage], pattern.works[stage].backward_seconds)
        )
    for (_, start, seconds), (name, next_start, _) in pairwise(row):
        if next_start < start + seconds - slack:
            yield f"{name}: begins at {next_start:g}, before {start + seconds:g}"
