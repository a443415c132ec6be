"""A pattern: a pipeline's micro-batches one after the other, each a period after the one before, on the same path.

A stage is forwards and backwards on a device, devices may have several stages. Every border between stages has a link
of its own, which carries one message at a time, either way; a pattern says when each piece of work of micro-batch 0
starts, and micro-batch i does the same i periods later (the 1-periodic patterns of Beaumont et al., Euro-Par 2021).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Pattern", "PatternWork", "pattern_breaches"]

_SLACK = 1e-6
"""Of a period: by so much a pattern that floating point or an integer programme made may overlap."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternWork:
    """What a stage does for one micro-batch, and holds of it from its forward's start to its backward's end."""

    device: int
    forward_seconds: float
    backward_seconds: float
    each: int
    """In units of the device's room: bytes, or 1 where the room is a number of micro-batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """Stages in order, one-way seconds of the links between them, the period, and starts of micro-batch 0's work."""

    works: tuple[PatternWork, ...]
    links: tuple[float, ...]
    period_seconds: float
    forward_starts: tuple[float, ...]
    send_starts: tuple[float, ...]
    """Of outputs, over the link behind each stage but the last."""
    return_starts: tuple[float, ...]
    """Of gradients, over the same links."""
    backward_starts: tuple[float, ...]

    @property
    def latency_seconds(self) -> float:
        """From a micro-batch's first forward to the end of its last backward."""
        return self.backward_starts[0] + self.works[0].backward_seconds - self.forward_starts[0]

    def orders(self, microbatches: int) -> list[list[tuple[str, int, int]]]:
        """Return by device the forwards and backwards (kind, stage, micro-batch) of a step, in their order.

        Work begins no earlier than what it needs has ended, whatever floating point has made of its start, and what
        begins and ends at one time, as work of no time does, is in the order in which a micro-batch needs it: so no
        device waits for another that waits for it.
        """
        devices = 1 + max(work.device for work in self.works)
        lanes: list[list[tuple[float, float, int, int, tuple[str, int, int]]]] = [[] for _ in range(devices)]
        count, latest = len(self.works), 0.0
        for place in range(2 * count):
            stage = place if place < count else 2 * count - 1 - place
            kind, work = "F" if place < count else "B", self.works[stage]
            begin = max(latest, self.forward_starts[stage] if kind == "F" else self.backward_starts[stage])
            latest = begin + (work.forward_seconds if kind == "F" else work.backward_seconds)
            for batch in range(microbatches):
                at = batch * self.period_seconds
                lanes[work.device].append((begin + at, latest + at, place, batch, (kind, stage, batch)))
        return [[piece for *_, piece in sorted(lane)] for lane in lanes]


def pattern_breaches(pattern: Pattern, rooms: Sequence[int]) -> list[str]:
    """Return what a pattern does that it must not, micro-batches unrolled one by one; `rooms` are those of devices."""
    count = 2 + (math.ceil(pattern.latency_seconds / pattern.period_seconds) if pattern.period_seconds else 0)
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
