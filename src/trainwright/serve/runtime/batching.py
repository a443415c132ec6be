"""Requests, and how their rows become batches: coalesced once for all members, split where they are too large."""

import math
import time
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from trainwright.ensemble.metrics import Array
from trainwright.errors import DeadlinePassed, TrainwrightError
from trainwright.serve.service import Options, Response

__all__ = ["Batcher", "Piece", "Request", "SegmentSlot", "request_of"]


@dataclass(eq=False, kw_only=True, slots=True)
class Piece:
    """Some rows of a request, and where they lie."""

    request: "Request"
    first: int  # row of the request
    rows: int
    start: int  # row of the slot
    live: bool = True  # the request counts on it: no longer once it has ended or begun anew


@dataclass(eq=False, kw_only=True, slots=True)
class Request:
    """Rows that wait for the predictions of the members, which are named by their positions in the ensemble."""

    x: Array
    options: Options
    admitted: float  # seconds of the monotonic clock, as the deadline
    deadline: float = math.inf
    future: "Future[Response]" = field(default_factory=Future)
    alone: bool = False  # in segments of its own, because rows that came with it were refused
    taken: int = 0  # rows in segments
    pieces: list[Piece] = field(default_factory=list)
    slots: "list[SegmentSlot]" = field(default_factory=list)  # in which its pieces lie
    awaited: int = 0  # predictions of members for pieces that have not come
    came: Counter[int] = field(default_factory=Counter)  # member → rows for which its predictions have come
    predictions: dict[int, Array] = field(default_factory=dict)  # member → those that have come, in [N, ...]
    missing: dict[int, str] = field(default_factory=dict)  # member → why it will not come
    refusal: TrainwrightError | None = None  # what is said instead of an answer
    ended: bool = False  # answered or refused, or being so

    @property
    def rows(self) -> int:
        """Rows it has."""
        return len(self.x)

    def restart(self) -> None:
        """Forget all that was done for it."""
        for piece in self.pieces:
            piece.live = False
        self.taken, self.awaited = 0, 0
        self.pieces, self.slots, self.came, self.predictions, self.missing = [], [], Counter(), {}, {}

    def late_error(self, words: str) -> DeadlinePassed:
        """Return the refusal of a request whose deadline has passed."""
        milliseconds = (self.deadline - self.admitted) * 1e3
        return DeadlinePassed(f"deadline_ms: {milliseconds:.3g} passed {words}")


@dataclass(eq=False, kw_only=True, slots=True)
class SegmentSlot:
    """A slot, and the segment in it."""

    number: int
    generation: int = 0
    pieces: list[Piece] = field(default_factory=list)  # none while it is free
    rows: int = 0
    awaited: set[int] = field(default_factory=set)  # positions of the members that may still come
    leases: int = 0  # tasks that a living worker has

    @property
    def wanted(self) -> bool:
        """Say whether a request still waits for it."""
        return any(piece.live for piece in self.pieces)


def request_of(x: Array, options: Options, deadline_ms: float | None) -> Request:
    """Return a request for rows x [N, ...] that is admitted now; `deadline_ms` is for options that say none."""
    milliseconds = deadline_ms if options.deadline_ms is None else options.deadline_ms
    now = time.monotonic()
    deadline = math.inf if milliseconds is None else now + milliseconds / 1e3
    return Request(x=x, options=options, admitted=now, deadline=deadline)


class Batcher:
    """The requests with rows that wait, first come, first served."""

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()
        # That wait.
        self.rows = 0

    def put(self, request: Request) -> None:
        """Append a request."""
        self.requests.append(request)
        self.rows += request.rows

    def requeue(self, request: Request) -> None:
        """Restart a request whose rows were taken, before all others."""
        # If all its rows were taken, it is no longer in the queue.
        if request.taken == request.rows:
            self.requests.appendleft(request)
        self.rows += request.taken
        request.restart()

    def drop(self, request: Request) -> None:
        """Forget the rows of an ended request that still wait."""
        if request.taken < request.rows and request in self.requests:
            self.requests.remove(request)
            self.rows -= request.rows - request.taken

    def take(self, limit: int) -> list[Piece]:
        """Take up to `limit` rows of the requests, in their order."""
        pieces: list[Piece] = []
        rows = 0
        while self.requests and rows < limit:
            request = self.requests[0]
            # A request that must be alone begins a segment of its own.
            if request.alone and pieces:
                break
            count = min(limit - rows, request.rows - request.taken)
            pieces.append(Piece(request=request, first=request.taken, rows=count, start=rows))
            request.taken += count
            rows += count
            if request.taken == request.rows:
                self.requests.popleft()
            if request.alone:
                break
        self.rows -= rows
        return pieces
