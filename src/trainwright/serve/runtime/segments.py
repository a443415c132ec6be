"""Requests in progress: assigns rows to slots, collects predictions, drops expired requests, finishes each once.

Predictions are collected exactly once, keyed by (slot, generation, member). A slow or restarted worker may report one a
second time, and a report may name a slot that meanwhile holds other rows: its generation is then over. Neither is added
to a response. A slot is free when no request waits for it any more and no living worker may still write to it. Belongs
to the dispatching thread and knows nothing of processes.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.errors import RequestError, TrainwrightError
from trainwright.serve.runtime.arena import Arena
from trainwright.serve.runtime.batching import Batcher, Request, SegmentSlot
from trainwright.serve.runtime.responses import incomplete_refusal
from trainwright.serve.service import DeploymentSettings

__all__ = ["Segments"]

_LATE = "its answer did not come before the deadline"


class Segments:
    """The rows that wait, the slots, and the deadlines; `deliver` gets each request when it is finished."""

    def __init__(
        self,
        *,
        ensemble: Ensemble,
        slots: int,
        arena: Arena,
        settings: DeploymentSettings,
        counts: Counter[str],
        deliver: Callable[[Request], None],
    ) -> None:
        self.batcher = Batcher()
        self.slots = [SegmentSlot(number=number) for number in range(slots)]
        self.free = list(reversed(self.slots))
        self.counts = counts
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

    def expire_requests(self, now: float) -> None:
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
        slot = self.free.pop()
        slot.pieces, slot.rows = pieces, sum(piece.rows for piece in pieces)
        slot.awaited = {member for member in self._members if member not in lost}
        inputs = self._arena.inputs(slot.number)
        for piece in pieces:
            request = piece.request
            rows = request.x[piece.first : piece.first + piece.rows]
            # Infinite rows are for the members to refuse, not to end all requests.
            with np.errstate(over="ignore"):
                np.copyto(inputs[piece.start : piece.start + piece.rows], rows, casting="same_kind")
            request.pieces.append(piece)
            request.slots.append(slot)
            request.awaited += len(slot.awaited)
            request.missing |= lost
        self.counts["segments"] += 1
        for piece in pieces:
            if not slot.awaited or piece.request.future.cancelled():
                self.finish(piece.request)
        return slot

    def find(self, number: int, generation: int) -> SegmentSlot | None:
        """Return the slot if it is still of this generation."""
        slot = self.slots[number]
        return slot if slot.generation == generation and slot.pieces else None

    def record_prediction(self, number: int, generation: int, member: int) -> None:
        """Copy a member's predictions out of a slot, once."""
        slot = self.find(number, generation)
        # Without a slot the report is about rows that nobody waits for.
        if slot is None or member not in slot.awaited:
            self.counts["stale" if slot is None else "duplicates"] += 1
            return
        slot.awaited.remove(member)
        for piece in slot.pieces:
            request = piece.request
            if not piece.live:
                continue
            found = self._arena.predictions(slot.number, member)[piece.start : piece.start + piece.rows]
            if member not in request.predictions:
                request.predictions[member] = np.empty((request.rows, *found.shape[1:]))
            request.predictions[member][piece.first : piece.first + piece.rows] = found
            # A member counts as used only when all rows of the request have its predictions.
            request.came[member] += piece.rows
        self._await_fewer(slot, 1)

    def drop_members(self, slot: SegmentSlot, missing: Mapping[int, str]) -> None:
        """Let the requests of a slot go without these members."""
        # What has arrived counts, even of a worker that was lost later.
        left = {member: why for member, why in missing.items() if member in slot.awaited}
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
                slots = request.slots
                self.batcher.requeue(request)
                request.alone = True
                for one in slots:
                    self.release(one)

    def finish(self, request: Request, *, late: bool = False, refusal: TrainwrightError | None = None) -> None:
        """Hand a request over to be answered from what has come; nothing that comes later counts."""
        if request.ended:
            return
        request.ended = True
        self.batcher.drop(request)
        # Members with predictions for all rows; the others are missing, with a reason.
        used = [member for member in self._members if request.came[member] == request.rows]
        request.predictions = {member: request.predictions[member] for member in used}
        request.missing = {member: request.missing.get(member, _LATE) for member in self._members if member not in used}
        if refusal is None and request.missing:
            refusal = incomplete_refusal(self._ensemble, request, request.missing, self._settings, late=late)
            self.counts["degraded"] += refusal is None
        request.refusal = refusal
        for piece in request.pieces:
            piece.live = False
        slots = request.slots
        # Pieces know their request: what knew each other would wait for the garbage collector.
        request.pieces, request.slots = [], []
        for slot in slots:
            self.release(slot)
        self._deliver(request)

    def release(self, slot: SegmentSlot, *, leases: int = 0) -> None:
        """End so many leases; free the slot unless a request waits for it or a worker may still write to it."""
        slot.leases -= leases
        if slot.pieces and not slot.leases and not (slot.awaited and slot.wanted):
            slot.pieces, slot.awaited = [], set()
            slot.generation += 1
            self.free.append(slot)

    def finish_all(self, refusal: TrainwrightError) -> None:
        """Refuse whatever is not finished."""
        # Those that wait first, then those whose rows are in slots.
        in_slots = [piece.request for slot in self.slots for piece in slot.pieces]
        for request in [*self.batcher.requests, *in_slots]:
            self.finish(request, refusal=refusal)

    def _await_fewer(self, slot: SegmentSlot, members: int) -> None:
        """Let the requests of a slot wait for so many predictions less, and finish what is complete."""
        for piece in slot.pieces:
            request = piece.request
            if piece.live:
                request.awaited -= members
                if request.awaited == 0 and request.taken == request.rows:
                    self.finish(request)
        self.release(slot)
