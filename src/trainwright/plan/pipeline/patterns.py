"""A pattern: a pipeline's micro-batches one after the other, each a period after the one before, on the same path.

A stage is forwards and backwards on a device, devices may have several stages. Every border between stages has a link
of its own, which carries one message at a time, either way; a pattern says when each piece of work of micro-batch 0
starts, and micro-batch i does the same i periods later (the 1-periodic patterns of Beaumont et al., Euro-Par 2021).
"""

from dataclasses import dataclass

__all__ = ["Pattern", "PatternWork"]


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
