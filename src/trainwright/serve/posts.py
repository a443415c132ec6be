"""A post that one process after another may hold, and the line of work of all posts of a unit."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from trainwright.serve.accumulate import Slot
from trainwright.serve.matrix import Instance
from trainwright.serve.messages import Task
from trainwright.serve.supervise import Health, WorkerProcess
from trainwright.serve.units import Unit

__all__ = ["Flight", "Post", "State", "UnitLine", "Work"]


class State(Enum):
    """What a post is at."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # to start its next process
    LOST = "lost"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Members of a unit to compute on a slot, if that is still of this generation."""

    slot: Slot
    generation: int
    members: frozenset[int]  # positions in the ensemble

    @property
    def wanted(self) -> bool:
        """Say whether a request still waits for it."""
        return self.slot.generation == self.generation and self.slot.wanted


@dataclass(kw_only=True, slots=True)
class Flight:
    """Work that a process has."""

    work: Work
    left: set[int]  # members that were not reported


@dataclass(eq=False, kw_only=True, slots=True)
class Post:
    """One instance of the plan."""

    instance: Instance
    health: Health
    credits: int  # tasks that its process may have at once: one computes while the next is at hand
    state: State = State.WAITING
    process: WorkerProcess | None = None
    flights: dict[tuple[int, int], Flight] = field(default_factory=dict)  # by slot and generation
    heard: float = -math.inf
    restart_at: float = -math.inf
    restarts: int = 0
    said: str = ""  # by its process, of what it cannot do
    why: str = ""  # of its last end
    batches: int = 0
    rate: float = 0.0  # rows a second in the batches that it computed when it started

    @property
    def free(self) -> int:
        """Tasks that it can take now."""
        return self.credits - len(self.flights) if self.state is State.READY else 0

    def give(self, work: Work, now: float) -> None:
        """Send work to its process, which then holds a lease on the slot."""
        slot = work.slot
        slot.leases += 1
        if not self.flights:
            self.heard = now  # it was silent for want of work
        self.flights[slot.number, slot.generation] = Flight(work=work, left=set(work.members))
        members = enumerate(self.instance.unit.members)
        task = Task(
            slot=slot.number,
            generation=slot.generation,
            rows=slot.rows,
            batch=self.instance.batch,
            deadline=slot.deadline,
            members=sum(1 << k for k, member in members if member in work.members),
        )
        self.say(task.encode())

    def say(self, message: Mapping[str, Any] | bytes) -> None:
        """Send its process a message."""
        if self.process is not None:
            self.process.say(message)

    def landed(self, number: int, generation: int, members: set[int]) -> Slot | None:
        """Note that its process has done with these members on a slot; return the slot if that ends the lease on it."""
        flight = self.flights.get((number, generation))
        if flight is None:
            return None
        flight.left -= members
        if flight.left:
            return None
        del self.flights[number, generation]
        return flight.work.slot


@dataclass(eq=False, kw_only=True, slots=True)
class UnitLine:
    """The work of one unit, for whichever of its posts is free first."""

    unit: Unit
    posts: list[Post]
    pending: deque[Work] = field(default_factory=deque)
    outlook: str = ""  # what becomes of it, once it is lost

    @property
    def lost(self) -> bool:
        """Say whether nobody will compute it any more."""
        return all(post.state is State.LOST for post in self.posts)

    @property
    def ready(self) -> bool:
        """Say whether somebody can compute it now."""
        return any(post.state is State.READY for post in self.posts)

    @property
    def rate(self) -> float:
        """Rows a second that its posts can compute, by the batches that they computed at start."""
        return sum(post.rate for post in self.posts if post.state is not State.LOST)

    @property
    def has_room(self) -> bool:
        """Say whether a further segment would be taken soon: more would only wait here instead of gathering rows."""
        alive = [post for post in self.posts if post.state is not State.LOST]
        return len(self.pending) + sum(len(post.flights) for post in alive) < sum(post.credits for post in alive)

    @property
    def why(self) -> str:
        """How it came to be lost, and what becomes of it."""
        return next((post.why for post in reversed(self.posts) if post.why), "lost") + self.outlook

    def add(self, slot: Slot, now: float) -> None:
        """Append the work on a slot for the members of the unit that it expects."""
        if wanted := slot.expected & set(self.unit.members):
            self.pending.append(Work(slot=slot, generation=slot.generation, members=wanted))
            self.send(now)

    def send(self, now: float) -> None:
        """Give what is pending to posts with credits left, to those with most first."""
        while self.pending:
            post = max(self.posts, key=lambda post: (post.free, -post.heard))
            if not post.free:
                return
            work = self.pending.popleft()
            if work.wanted:
                post.give(work, now)

    def take_back(self, post: Post) -> list[Slot]:
        """Let others do what a post's process had; return the slots on which it held leases."""
        flights = list(post.flights.values())
        post.flights.clear()
        for flight in reversed(flights):
            work = flight.work
            self.pending.appendleft(Work(slot=work.slot, generation=work.generation, members=frozenset(flight.left)))
        return [flight.work.slot for flight in flights]
