"""Requests, and how their rows become batches: coalesced once for all members, split where they are too large."""

import math
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from trainwright.ensemble.metrics import Array
from trainwright.serve.service import Options, Response

__all__ = ["Batcher", "Piece", "Request", "request_of"]


@dataclass(eq=False, kw_only=True, slots=True)
class Piece:
    """Some rows of a request, and where they lie."""

    request: "Request"
    first: int  # row of the request
    rows: int
    start: int  # row of the slot
    slot: int = -1
    live: bool = True  # the request counts on it: no longer once it has ended or begun anew
    leased: bool = True  # its slot may not be used again


@dataclass(eq=False, kw_only=True, slots=True)
class Request:
    """Rows that wait for the predictions of some members."""

    x: Array
    options: Options
    members: tuple[int, ...]  # positions in the ensemble, ascending
    weights: Mapping[int, float]  # of these members
    admitted: float  # seconds of the monotonic clock, as all below
    deadline: float = math.inf
    future: "Future[Response]" = field(default_factory=Future)
    alone: bool = False  # in segments of its own, because rows that came with it were refused
    taken: int = 0  # rows in segments
    pieces: list[Piece] = field(default_factory=list)
    awaited: int = 0  # predictions of members for pieces that have not come
    came: dict[int, int] = field(default_factory=dict)  # member → rows for which its predictions have come
    seconds: dict[int, float] = field(default_factory=dict)  # member → those of its longest batch
    missing: dict[int, str] = field(default_factory=dict)  # member → why it will not come
    copies: dict[int, Array] = field(default_factory=dict)  # member → predictions [N, ...], if they fill several slots
    ended: bool = False  # answered or refused, or being so
    begun: float = math.nan  # when its first rows were put into a segment

    @property
    def rows(self) -> int:
        """Rows it has."""
        return len(self.x)

    @property
    def split(self) -> bool:
        """Say whether its rows lie in several slots, or will."""
        return len(self.pieces) > 1 or self.pieces[0].rows < self.rows

    def begin_anew(self) -> None:
        """Forget all that was done for it."""
        for piece in self.pieces:
            piece.live = False
        self.taken, self.awaited = 0, 0
        self.pieces, self.came, self.seconds, self.missing, self.copies = [], {}, {}, {}, {}


def request_of(x: Array, options: Options, weights: Mapping[int, float], deadline_ms: float | None) -> Request:
    """Return a request to the members that have `weights`, or to the heaviest of them, of equals the first.

    `weights` are by position, ascending; `deadline_ms` is for options that say none.
    """
    most = options.max_members
    # The heaviest members approximate the whole ensemble best.
    chosen = tuple(weights)
    if most is not None and most < len(chosen):
        chosen = tuple(sorted(sorted(chosen, key=lambda member: (-weights[member], member))[:most]))
        weights = {member: weights[member] for member in chosen}
    milliseconds = deadline_ms if options.deadline_ms is None else options.deadline_ms
    now = time.monotonic()
    return Request(
        x=x,
        options=options,
        members=chosen,
        weights=weights,
        admitted=now,
        deadline=math.inf if milliseconds is None else now + milliseconds / 1e3,
    )


class Batcher:
    """The rows that wait, first come, first served; rows of requests for the same members share segments."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, ...], _Queue] = {}
        # That wait.
        self.rows = 0

    def put(self, request: Request) -> None:
        """Append a request."""
        # Segments are computed by whole sets of members, so each set has a queue of its own.
        queue = self._queues.setdefault(request.members, _Queue())
        queue.requests.append(request)
        self._count_rows(queue, request.rows)

    def requeue(self, request: Request) -> None:
        """Let a request whose rows were taken start anew, before all others."""
        queue = self._queues.setdefault(request.members, _Queue())
        # All its rows were taken, so it is no longer in the queue.
        if request.taken == request.rows:
            queue.requests.appendleft(request)
        self._count_rows(queue, request.taken)
        request.begin_anew()

    def drop(self, request: Request) -> None:
        """Forget the rows of an ended request that still wait."""
        queue = self._queues.get(request.members)
        if queue is not None and request.taken < request.rows and request in queue.requests:
            queue.requests.remove(request)
            self._count_rows(queue, request.taken - request.rows)
            self._drop_empty_queue(request.members)

    def waiting(self) -> list[tuple[tuple[int, ...], Request, int]]:
        """Return (members, oldest request, rows) for each set of members asked for, oldest first."""
        found = [(members, queue.requests[0], queue.rows) for members, queue in self._queues.items()]
        return sorted(found, key=lambda one: one[1].admitted)

    def take(self, members: tuple[int, ...], limit: int) -> list[Piece]:
        """Take up to `limit` rows of the requests for these members, in their order."""
        queue, rows = self._queues[members], 0
        pieces: list[Piece] = []
        while queue.requests and rows < limit:
            request = queue.requests[0]
            # A request that must be alone begins a segment of its own.
            if request.alone and pieces:
                break
            count = min(limit - rows, request.rows - request.taken)
            pieces.append(Piece(request=request, first=request.taken, rows=count, start=rows))
            request.taken += count
            rows += count
            if request.taken == request.rows:
                queue.requests.popleft()
            if request.alone:
                break
        self._count_rows(queue, -rows)
        self._drop_empty_queue(members)
        return pieces

    def all(self) -> list[Request]:
        """Return all requests with rows that wait."""
        return [request for queue in self._queues.values() for request in queue.requests]

    def _count_rows(self, queue: "_Queue", rows: int) -> None:
        queue.rows += rows
        self.rows += rows

    def _drop_empty_queue(self, members: tuple[int, ...]) -> None:
        if not self._queues[members].requests:
            del self._queues[members]


@dataclass(kw_only=True, slots=True)
class _Queue:
    requests: deque[Request] = field(default_factory=deque)
    rows: int = 0
