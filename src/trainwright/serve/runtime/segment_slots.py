"""Collects predictions exactly once, keyed by (slot, generation, member), and reuses slots.

A slow or restarted worker may report a prediction a second time, and a report may name a slot that meanwhile holds
other rows: its generation is then over. Neither is added to a response. A slot is free when no request will read it any
more and no living worker may still write to it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from trainwright.serve.runtime.batching import Piece

__all__ = ["Accumulator", "Arrival", "SegmentSlot"]


class Arrival(Enum):
    """What a report of a prediction is."""

    NEW = "new"
    DUPLICATE = "duplicate"
    STALE = "stale"


@dataclass(eq=False, kw_only=True, slots=True)
class SegmentSlot:
    """A segment under way."""

    number: int
    generation: int = 0
    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    expected: frozenset[int] = frozenset()  # positions of members
    arrived: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)  # members that will not come
    readers: int = 0  # pieces whose request has not let go
    leases: int = 0  # tasks that a living worker has

    @property
    def awaited(self) -> frozenset[int]:
        """Members that may still come."""
        return self.expected - self.arrived - self.missing

    @property
    def deadline(self) -> float:
        """The last deadline of the requests that wait for it."""
        return max((piece.request.deadline for piece in self.pieces if piece.live), default=math.inf)

    @property
    def wanted(self) -> bool:
        """Say whether a request still waits for it."""
        return any(piece.live and not piece.request.ended for piece in self.pieces)


class Accumulator:
    """The slots, of which each is free or in use."""

    def __init__(self, slots: int) -> None:
        self.slots = [SegmentSlot(number=number) for number in range(slots)]
        self._free = list(reversed(self.slots))
        self.duplicates = 0
        self.stale = 0

    @property
    def free(self) -> int:
        """Slots that are free."""
        return len(self._free)

    @property
    def used(self) -> list[SegmentSlot]:
        """Slots in use."""
        return [slot for slot in self.slots if slot.pieces]

    def lease(self, pieces: list[Piece], expected: Iterable[int]) -> SegmentSlot:
        """Take a free slot for these pieces; each holds it until `release`."""
        slot = self._free.pop()
        for piece in pieces:
            piece.slot = slot.number
        slot.pieces, slot.rows, slot.readers = pieces, sum(piece.rows for piece in pieces), len(pieces)
        slot.expected, slot.arrived, slot.missing = frozenset(expected), set(), set()
        return slot

    def find(self, number: int, generation: int) -> SegmentSlot | None:
        """Return the slot if it is still of this generation."""
        slot = self.slots[number]
        return slot if slot.generation == generation and slot.pieces else None

    def arrive(self, number: int, generation: int, member: int) -> Arrival:
        """Count the prediction of a member, once."""
        slot = self.find(number, generation)
        # The slot was released meanwhile: the report is about rows that nobody waits for.
        if slot is None:
            self.stale += 1
            return Arrival.STALE
        if member not in slot.awaited:
            self.duplicates += 1
            return Arrival.DUPLICATE
        slot.arrived.add(member)
        return Arrival.NEW

    def release(self, slot: SegmentSlot, *, readers: int = 0, leases: int = 0) -> bool:
        """End so many holds on a slot; with the last one it is free, and its generation over."""
        slot.readers -= readers
        slot.leases -= leases
        if slot.readers or slot.leases or not slot.pieces:
            return False
        # The generation wraps at 32 bits, the width of its field in messages.
        slot.pieces = []
        slot.generation = (slot.generation + 1) % (1 << 32)
        self._free.append(slot)
        return True
