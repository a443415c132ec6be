"""Requests in progress: assigns their rows to slots, counts their members' predictions, and finishes each once.

Predictions are collected exactly once, keyed by (slot, generation, member). A slow or restarted worker may report one a
second time, and a report may name a slot that meanwhile holds other rows: its generation is then over. Neither is added
to a response. A slot is free when no request will read it any more and no living worker may still write to it. Belongs
to the dispatching thread and knows nothing of processes.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.errors import RequestError, TrainwrightError
from trainwright.serve.runtime.arena import Arena
from trainwright.serve.runtime.batching import Batcher, Piece, Request
from trainwright.serve.runtime.responses import FinishedRequest, incomplete_refusal
from trainwright.serve.service import DeploymentSettings

__all__ = ["Accumulator", "SegmentSlot", "Segments"]

_LATE = "its answer did not come before the deadline"


@dataclass(eq=False, kw_only=True, slots=True)
class SegmentSlot:
    """A segment under way."""

    number: int
    generation: int = 0
    pieces: list[Piece] = field(default_factory=list)
    rows: int = 0
    expected: frozenset[int] = frozenset()  # positions of members
    awaited: set[int] = field(default_factory=set)  # those of them that may still come
    readers: int = 0  # pieces whose request has not let go
    leases: int = 0  # tasks that a living worker has

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
        slot.expected = frozenset(expected)
        slot.awaited = set(slot.expected)
        return slot

    def find(self, number: int, generation: int) -> SegmentSlot | None:
        """Return the slot if it is still of this generation."""
        slot = self.slots[number]
        return slot if slot.generation == generation and slot.pieces else None

    def arrive(self, number: int, generation: int, member: int) -> bool:
        """Say whether the prediction of a member counts: the first one for rows that somebody waits for."""
        slot = self.find(number, generation)
        # The slot was released meanwhile: the report is about rows that nobody waits for.
        if slot is None:
            self.stale += 1
            return False
        if member not in slot.awaited:
            self.duplicates += 1
            return False
        slot.awaited.remove(member)
        return True

    def release(self, slot: SegmentSlot, *, readers: int = 0, leases: int = 0) -> bool:
        """End so many holds on a slot; with the last one it is free, and its generation over."""
        slot.readers -= readers
        slot.leases -= leases
        if slot.readers or slot.leases or not slot.pieces:
            return False
        slot.pieces = []
        slot.generation += 1
        self._free.append(slot)
        return True


class Segments:
    """The rows that wait, the slots in use, and the deadlines; `deliver` gets each request when it is finished."""

    def __init__(
        self,
        *,
        ensemble: Ensemble,
        slots: int,
        arena: Arena,
        settings: DeploymentSettings,
        deliver: Callable[[FinishedRequest], None],
    ) -> None:
        self.batcher = Batcher()
        self.accumulator = Accumulator(slots)
        self.counts: Counter[str] = Counter()
        self._ensemble, self._arena, self._settings, self._deliver = ensemble, arena, settings, deliver
        self._members = range(len(ensemble.members))
        self._deadlines: list[tuple[float, int, Request]] = []
        self._number = itertools.count()

    def admit(self, request: Request) -> None:
        """Let a request's rows wait."""
        self.counts["requests"] += 1
        self.counts["rows"] += request.rows
        self.batcher.put(request)
        if request.deadline < math.inf:
            heapq.heappush(self._deadlines, (request.deadline, next(self._number), request))

    @property
    def next_deadline(self) -> float:
        """The first deadline of all, which may be that of a request that is finished; infinity if there is none."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def expire(self, now: float) -> None:
        """Finish the requests whose deadline has come."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, request = heapq.heappop(self._deadlines)
            # Finished requests stay in the heap until their time has come.
            if not request.ended:
                self.counts["late"] += 1
                self.finish(request, late=True)

    def form(self, limit: int, lost: Mapping[int, str]) -> SegmentSlot:
        """Put up to `limit` of the rows that wait into a free slot; `lost` members are left out."""
        # A segment serves all members at once, so its rows are copied once.
        pieces = self.batcher.take(limit)
        expected = [member for member in self._members if member not in lost]
        slot = self.accumulator.lease(pieces, expected)
        inputs = self._arena.inputs(slot.number)
        for piece in pieces:
            request = piece.request
            rows = request.x[piece.first : piece.first + piece.rows]
            # Infinite rows are for the members to refuse, not to end all requests.
            with np.errstate(over="ignore"):
                np.copyto(inputs[piece.start : piece.start + piece.rows], rows, casting="same_kind")
            request.pieces.append(piece)
            request.awaited += len(expected)
            request.missing |= lost
        self.counts["segments"] += 1
        for piece in pieces:
            if not expected or piece.request.future.cancelled():
                self.finish(piece.request)
        return slot

    def record_prediction(self, number: int, generation: int, member: int) -> None:
        """Count a member's predictions once; those of requests in several slots are taken out at once."""
        if not self.accumulator.arrive(number, generation, member):
            return
        slot = self.accumulator.slots[number]
        for piece in slot.pieces:
            request = piece.request
            if not piece.live:
                continue
            # A member counts as used only when all rows of the request have its predictions.
            request.came[member] = request.came.get(member, 0) + piece.rows
            if request.split:
                found = self._arena.predictions(slot.number, member)[piece.start : piece.start + piece.rows]
                if member not in request.copies:
                    request.copies[member] = np.empty((request.rows, *found.shape[1:]))
                request.copies[member][piece.first : piece.first + piece.rows] = found
        self._await_fewer(slot, 1)

    def drop_members(self, slot: SegmentSlot, missing: Mapping[int, str]) -> None:
        """Let the requests of a slot go without these members."""
        # What has arrived counts, even of a worker that was lost later.
        left = {member: why for member, why in missing.items() if member in slot.awaited}
        if left:
            slot.awaited -= left.keys()
            for piece in slot.pieces:
                if piece.live:
                    piece.request.missing |= left
            self._await_fewer(slot, len(left))

    def refuse(self, slot: SegmentSlot, why: str) -> None:
        """Refuse the request of a slot; if there are several, let each begin anew alone, to find the one."""
        requests = list(dict.fromkeys(piece.request for piece in slot.pieces if piece.live))
        for request in requests:
            if len(requests) == 1:
                self.finish(request, refusal=RequestError(f"request: {why}"))
            else:
                pieces = request.pieces
                self.batcher.requeue(request)
                request.alone = True
                self._release_pieces(pieces)

    def finish(self, request: Request, *, late: bool = False, refusal: TrainwrightError | None = None) -> None:
        """Hand a request over to be answered from what has come; nothing that comes later counts."""
        if request.ended:
            return
        request.ended = True
        self.batcher.drop(request)
        # Members with predictions for all rows; the others are missing, with a reason.
        used = [member for member in self._members if request.came.get(member) == request.rows]
        missing = {member: request.missing.get(member, _LATE) for member in self._members if member not in used}
        if refusal is None and missing:
            refusal = incomplete_refusal(self._ensemble, request, missing, self._settings, late=late)
            self.counts["degraded"] += refusal is None
        pieces = request.pieces
        # Predictions of one piece are read where they lie; the slot stays in use until `release`.
        if pieces and not request.split:
            only = pieces[0]
            lies = slice(only.start, only.start + only.rows)
            found = {member: self._arena.predictions(only.slot, member)[lies] for member in used}
        else:
            found = {member: request.copies[member] for member in used}
            self._release_pieces(pieces)
        for piece in pieces:
            piece.live = False
        self._deliver(FinishedRequest(request=request, predictions=found, missing=missing, refusal=refusal))

    def release(self, request: Request) -> None:
        """Let go of a finished request's slots, once its predictions have been read."""
        self._release_pieces(request.pieces)

    def finish_all(self, refusal: TrainwrightError) -> None:
        """Refuse whatever is not finished."""
        # Those that wait first, then those whose rows are in slots.
        for request in list(self.batcher.requests):
            self.finish(request, refusal=refusal)
        for slot in self.accumulator.used:
            for piece in list(slot.pieces):
                self.finish(piece.request, refusal=refusal)

    def _await_fewer(self, slot: SegmentSlot, members: int) -> None:
        """Let the requests of a slot wait for so many predictions less, and let go of what is complete."""
        for piece in list(slot.pieces):
            request = piece.request
            if piece.live:
                request.awaited -= members
                if request.awaited == 0 and request.taken == request.rows:
                    self.finish(request)
                elif not slot.awaited and request.split:
                    self._release_pieces([piece])

    def _release_pieces(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if piece.leased:
                piece.leased = False
                self.accumulator.release(self.accumulator.slots[piece.slot], readers=1)
