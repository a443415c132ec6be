"""Admission control of requests: refuses them under overload, and counts outcomes; shared by both runtimes."""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any

from trainwright.errors import NotReady, Overloaded
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.runtime.batching import Request

__all__ = ["ENDED", "Runtime"]

ENDED = "service: has ended; nothing is answered any more"
_COUNTS = ("requests", "rows", "segments", "degraded", "late", "restarts", "moved", "duplicates", "stale")


class Runtime(ABC):
    """Computes the members for requests, in this process or in others; started and stopped once."""

    def __init__(self, plan: DeploymentPlan) -> None:
        # With the units where they are now.
        self.plan = plan
        # Of what follows, and of the queue.
        self.gate = threading.Lock()
        # Rows that wait.
        self.rows = 0
        # Requests that were admitted and not answered, and those that were refused because too many rows waited.
        self.open = self.shed = 0
        # Nothing is admitted any more.
        self.over = False
        # Rows a second that all members can compute, by batches that were timed at the start.
        self.rate = 1.0
        self.counts: Counter[str] = Counter()

    @abstractmethod
    def start(self) -> None:
        """Return once every member can answer; raises ServeError naming the one that cannot."""

    @abstractmethod
    def admit(self, request: Request, limit: int) -> None:
        """Take a request, or raise Overloaded if others wait and its rows would make them more than `limit`."""

    @abstractmethod
    def stop(self) -> None:
        """End; requests that were not answered are refused."""

    @abstractmethod
    def instances(self) -> list[dict[str, Any]]:
        """Return each instance with its process and figures."""

    @property
    @abstractmethod
    def answering(self) -> frozenset[int]:
        """Positions of the members that can be computed now."""

    def lost(self) -> Mapping[int, str]:
        """Return the members that are computed no more, and why."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return counts and what is in use, as JSON; may be a moment old."""
        counts = {name: self.counts[name] for name in _COUNTS}
        return {**counts, "shed": self.shed, "open": self.open, "moves": []}

    def admit_unless_overloaded(self, request: Request, limit: int) -> None:
        """Count a request as open; refuses a request that would overload the queue. Behind the gate."""
        waiting = self.rows
        if self.over:
            raise NotReady(ENDED, 1.0)
        # An empty queue admits any request, or one larger than the limit could never be served.
        if waiting and waiting + request.rows > limit:
            self.shed += 1
            raise Overloaded(
                f"service: {waiting} rows wait and {request.rows} more were given; allowed: {limit}; try again",
                min(30.0, max(0.1, waiting / self.rate)),
            )
        self.open += 1
