"""Worker slots, which one process after another fills, and the queue of work that a unit's workers share."""

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from trainwright.serve.placement.deployment_plan import Instance
from trainwright.serve.placement.units import Unit
from trainwright.serve.runtime.messages import SlotTask
from trainwright.serve.runtime.segment_slots import SegmentSlot
from trainwright.serve.runtime.supervise import Health, ServingProcess

__all__ = ["InFlight", "UnitQueue", "UnitWork", "WorkerSlot", "WorkerState"]


class WorkerState(Enum):
    """The state of a worker."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # to start its next process
    LOST = "lost"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitWork:
    """Members of a unit to compute on a slot, if that is still of this generation."""

    slot: SegmentSlot
    generation: int
    members: frozenset[int]  # positions in the ensemble

    @property
    def wanted(self) -> bool:
        """Say whether a request still waits for it."""
        return self.slot.generation == self.generation and self.slot.wanted


@dataclass(kw_only=True, slots=True)
class InFlight:
    """Work that a process has."""

    work: UnitWork
    left: set[int]  # members that were not reported


@dataclass(eq=False, kw_only=True, slots=True)
class WorkerSlot:
    """One instance of the plan."""

    instance: Instance
    health: Health
    credits: int  # tasks that its process may have at once: one computes while the next is at hand
    state: WorkerState = WorkerState.WAITING
    process: ServingProcess | None = None
    in_flight: dict[tuple[int, int], InFlight] = field(default_factory=dict)  # by slot and generation
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
        return self.credits - len(self.in_flight) if self.state is WorkerState.READY else 0

    def assign(self, work: UnitWork, now: float) -> None:
        """Send work to its process, which then holds a lease on the slot."""
        slot = work.slot
        slot.leases += 1
        if not self.in_flight:
            # It was silent for want of work.
            self.heard = now
        self.in_flight[slot.number, slot.generation] = InFlight(work=work, left=set(work.members))
        task = SlotTask(
            slot=slot.number,
            generation=slot.generation,
            rows=slot.rows,
            batch=self.instance.batch,
            deadline=slot.deadline,
            members=tuple(k for k, member in enumerate(self.instance.unit.members) if member in work.members),
        )
        if self.process is not None:
            self.process.send(task)

    def finish_members(self, number: int, generation: int, members: set[int]) -> SegmentSlot | None:
        """Note that its process has done with these members on a slot; return the slot if that ends the lease on it."""
        task = self.in_flight.get((number, generation))
        if task is None:
            return None
        task.left -= members
        if task.left:
            return None
        del self.in_flight[number, generation]
        return task.work.slot


@dataclass(eq=False, kw_only=True, slots=True)
class UnitQueue:
    """The work of one unit, taken by the first of its workers that is free."""

    unit: Unit
    workers: list[WorkerSlot]
    pending: deque[UnitWork] = field(default_factory=deque)
    outlook: str = ""  # what becomes of it, once it is lost

    @property
    def lost(self) -> bool:
        """Say whether nobody will compute it any more."""
        return all(worker.state is WorkerState.LOST for worker in self.workers)

    @property
    def ready(self) -> bool:
        """Say whether somebody can compute it now."""
        return any(worker.state is WorkerState.READY for worker in self.workers)

    @property
    def rate(self) -> float:
        """Rows a second that its workers can compute, by the batches that they computed at start."""
        return sum(worker.rate for worker in self.workers if worker.state is not WorkerState.LOST)

    @property
    def has_room(self) -> bool:
        """Say whether a further segment would be taken soon: more would only wait here instead of gathering rows."""
        alive = [worker for worker in self.workers if worker.state is not WorkerState.LOST]
        return len(self.pending) + sum(len(worker.in_flight) for worker in alive) < sum(
            worker.credits for worker in alive
        )

    @property
    def why(self) -> str:
        """How it came to be lost, and what becomes of it."""
        return next((worker.why for worker in reversed(self.workers) if worker.why), "lost") + self.outlook

    def add(self, slot: SegmentSlot, now: float) -> None:
        """Append the work on a slot for the members of the unit that it expects."""
        if wanted := slot.expected & set(self.unit.members):
            self.pending.append(UnitWork(slot=slot, generation=slot.generation, members=wanted))
            self.send(now)

    def send(self, now: float) -> None:
        """Assign pending work to the workers with most credits left."""
        while self.pending:
            # The worker with most credits, and of equals the one that was heard longest ago.
            worker = max(self.workers, key=lambda worker: (worker.free, -worker.heard))
            if not worker.free:
                return
            work = self.pending.popleft()
            if work.wanted:
                worker.assign(work, now)

    def take_back(self, worker: WorkerSlot) -> list[SegmentSlot]:
        """Requeue what a worker's process had; return the slots on which it held leases."""
        in_flight = list(worker.in_flight.values())
        worker.in_flight.clear()
        for task in reversed(in_flight):
            work = task.work
            self.pending.appendleft(UnitWork(slot=work.slot, generation=work.generation, members=frozenset(task.left)))
        return [task.work.slot for task in in_flight]
