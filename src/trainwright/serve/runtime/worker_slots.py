"""The pool of worker slots, which one process after another fills, and load balancing by a queue that a unit shares.

A process is started, sent work and ended here; its slot knows when it hangs, and when it has failed permanently.
The pool starts, restarts and ends them, knows lost members, and moves lost units elsewhere.
"""

import contextlib
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainwright.ensemble import Ensemble
from trainwright.errors import AllocationError
from trainwright.serve.placement.deployment_plan import DeploymentPlan, Instance, fail_over
from trainwright.serve.placement.devices import thread_environment
from trainwright.serve.placement.units import Unit
from trainwright.serve.runtime.arena import Arena, ArenaShape, SlotTask, send_message
from trainwright.serve.runtime.batching import SegmentSlot
from trainwright.serve.runtime.member_runners import describe_member
from trainwright.serve.service import DeploymentSettings

__all__ = [
    "CREDITS",
    "ServingProcess",
    "UnitQueue",
    "UnitWork",
    "WorkerHealth",
    "WorkerPool",
    "WorkerSlot",
    "WorkerState",
]

CREDITS = 2  # tasks that a process may have at once: one that it computes, and the next
_WINDOW = 64  # batches whose median is the usual one
_FAREWELL_SECONDS = 2.0


class ServingProcess:
    """A fresh interpreter, never a fork; it inherits its end of a connection and the descriptor of the shared memory.

    Its threads, and that they wait without spinning, are set in its environment, before it loads torch. It leaves when
    its line ends, so with its front.
    """

    def __init__(self, arena: Arena, start: Mapping[str, Any]) -> None:
        # Once this process holds one end alone, the end of either process ends the connection.
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainwright.serve.runtime.worker", str(theirs.fileno()), str(arena.descriptor)],
                env={
                    **thread_environment(start["threads"]),
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                },
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), arena.descriptor],
            )
        self.line: Connection[Any, Any] = Connection(ours.detach())
        self.send(start)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a task or a JSON object; a process that has died is not told, its silence will say so."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_message(self.line, message)

    @property
    def ended(self) -> bool:
        """Say whether the process is gone, even if another process holds its connection open."""
        return self._process.poll() is not None

    def kill(self) -> str:
        """End the process at once if it has not ended, and return how it did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # One that is on its way out tells its own status.
            self._process.wait(0.05)
        self._process.kill()
        code = self._process.wait()
        self.line.close()
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"

    def wait_for_exit(self) -> None:
        """Wait for a process whose connection was closed to end by itself, and end it if it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL_SECONDS)
        self._process.kill()
        self._process.wait()


@dataclass(kw_only=True)
class WorkerHealth:
    """What is known of an instance's past; pure: times are given."""

    settings: DeploymentSettings
    _failures: deque[float] = field(default_factory=deque)
    _batches: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def batch(self, seconds: float) -> None:
        """Note how long a batch took."""
        self._batches.append(seconds)

    @property
    def median_seconds(self) -> float:
        """The usual batch; 0 before the first."""
        return statistics.median(self._batches) if self._batches else 0.0

    def is_hung(self, silent_seconds: float) -> bool:
        """Say whether an instance that has work has been silent for too long: 10 x its median batch and some."""
        return silent_seconds > 10.0 * self.median_seconds + self.settings.hung_seconds

    def restart_delay(self, now: float) -> float | None:
        """Note a crash, and return after how many seconds to restart (backoff); None if it came to too many."""
        self._failures.append(now)
        while self._failures[0] < now - self.settings.failure_seconds:
            self._failures.popleft()
        # Too many ends within the window: restarting does not help.
        if len(self._failures) >= self.settings.failures:
            return None
        return self.settings.backoff_seconds * 2.0 ** min(len(self._failures) - 1, 30)


class WorkerState(Enum):
    """The state of a worker."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # to start its next process
    LOST = "lost"


@dataclass(eq=False, kw_only=True, slots=True)
class UnitWork:
    """Members of a unit to compute on a slot, if that is still of this generation."""

    slot: SegmentSlot
    generation: int
    members: set[int]  # positions in the ensemble; those that were reported are taken out

    @property
    def wanted(self) -> bool:
        """Say whether a request still waits for it."""
        return self.slot.generation == self.generation and self.slot.wanted


@dataclass(eq=False, kw_only=True, slots=True)
class WorkerSlot:
    """One instance of the plan."""

    instance: Instance
    health: WorkerHealth
    state: WorkerState = WorkerState.WAITING
    process: ServingProcess | None = None
    joining: bool = False  # of a unit that moved, until it can compute
    in_flight: dict[tuple[int, int], UnitWork] = field(default_factory=dict)  # by slot and generation
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
        return CREDITS - len(self.in_flight) if self.state is WorkerState.READY else 0

    def assign(self, work: UnitWork, now: float) -> None:
        """Send work to its process, which then holds a lease on the slot."""
        slot = work.slot
        # The process may write to the slot until it has reported, or has ended.
        slot.leases += 1
        if not self.in_flight:
            # It was silent for want of work.
            self.heard = now
        self.in_flight[slot.number, slot.generation] = work
        task = SlotTask(
            slot=slot.number,
            generation=slot.generation,
            rows=slot.rows,
            members=tuple(k for k, member in enumerate(self.instance.unit.members) if member in work.members),
        )
        if self.process is not None:
            self.process.send(task)

    def finish_members(self, number: int, generation: int, members: set[int]) -> SegmentSlot | None:
        """Note that its process has done with these members on a slot; return the slot if that ends the lease on it."""
        work = self.in_flight.get((number, generation))
        if work is None:
            return None
        work.members -= members
        if work.members:
            return None
        del self.in_flight[number, generation]
        return work.slot


@dataclass(eq=False, kw_only=True, slots=True)
class UnitQueue:
    """The work of one unit, taken by the first of its workers that is free."""

    unit: Unit
    workers: list[WorkerSlot] = field(default_factory=list)
    pending: deque[UnitWork] = field(default_factory=deque)
    outlook: str = ""  # what becomes of it, once it is lost

    @property
    def lost(self) -> bool:
        """Say whether nobody will compute it any more."""
        return all(worker.state is WorkerState.LOST or worker.joining for worker in self.workers)

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
        return len(self.pending) + sum(len(worker.in_flight) for worker in alive) < CREDITS * len(alive)

    @property
    def why(self) -> str:
        """How it came to be lost, and what becomes of it."""
        return next((worker.why for worker in reversed(self.workers) if worker.why), "lost") + self.outlook

    def add(self, slot: SegmentSlot, now: float) -> None:
        """Append the work on a slot for the members of the unit that it expects."""
        if wanted := slot.awaited & set(self.unit.members):
            self.pending.append(UnitWork(slot=slot, generation=slot.generation, members=wanted))
            self.dispatch(now)

    def dispatch(self, now: float) -> None:
        """Assign pending work to the workers with most credits left."""
        while self.pending:
            # The worker with most credits, and of equals the one that was heard longest ago.
            worker = max(self.workers, key=lambda worker: (worker.free, -worker.heard))
            if not worker.free:
                return
            work = self.pending.popleft()
            if work.wanted:
                worker.assign(work, now)

    def requeue(self, worker: WorkerSlot) -> list[SegmentSlot]:
        """Requeue what a worker's process had; return the slots on which it held leases."""
        works = list(worker.in_flight.values())
        worker.in_flight.clear()
        self.pending.extendleft(reversed(works))
        return [work.slot for work in works]


class WorkerPool:
    """All workers of a plan, and the descriptions that their processes start from."""

    def __init__(
        self, *, ensemble: Ensemble, plan: DeploymentPlan, settings: DeploymentSettings, layout: ArenaShape, runner: str
    ) -> None:
        self.trials = [member.trial for member in ensemble.members]
        self.plan = plan
        self._ensemble, self._layout, self._runner, self._settings = ensemble, layout, runner, settings
        # Unit, from, to, why, and what became of it.
        self.moves: list[dict[str, Any]] = []
        self.queues = [UnitQueue(unit=unit) for unit in plan.units]
        for instance in plan.instances:
            self._add_worker(instance)

    @property
    def workers(self) -> list[WorkerSlot]:
        """All workers, also those that failed permanently."""
        return [worker for queue in self.queues for worker in list(queue.workers)]

    def move_unit(self, queue: UnitQueue) -> DeploymentPlan:
        """Place a unit whose workers have all failed permanently on another device, and return the plan with it there.

        Its old workers stay listed, as lost; the new ones `join` once they can compute.
        """
        unit, old = queue.unit, list(queue.workers)
        lost = [worker.instance for worker in self.workers if worker.state is WorkerState.LOST]
        move = {"unit": unit.name, "from": sorted({one.instance.device.name for one in old}), "why": old[-1].why}
        try:
            self.plan = fail_over(self.plan, unit, lost)
        except AllocationError as error:
            queue.outlook = f"; it was not moved: {error}"
            self.moves.append({**move, "to": [], "state": "refused", "refusal": str(error)})
            return self.plan
        added = [instance for instance in self.plan.instances if instance.unit == unit]
        for instance in added:
            self._add_worker(instance).joining = True
        places = [instance.device.name for instance in added]
        queue.outlook = f"; it restarts on {', '.join(places)}"
        self.moves.append({**move, "to": places, "state": "starting"})
        return self.plan

    def join(self, worker: WorkerSlot) -> bool:
        """Let a worker that can compute now share its unit's work; say whether that completes a move."""
        if not worker.joining:
            return False
        worker.joining = False
        queue = self.queue_of(worker)
        queue.outlook = ""
        move = next(move for move in reversed(self.moves) if move["unit"] == queue.unit.name)
        completes: bool = move["state"] == "starting"
        move["state"] = "done"
        return completes

    def _add_worker(self, instance: Instance) -> WorkerSlot:
        worker = WorkerSlot(instance=instance, health=WorkerHealth(settings=self._settings))
        self.queue_of(worker).workers.append(worker)
        return worker

    def queue_of(self, worker: WorkerSlot) -> UnitQueue:
        """Return the queue that a worker takes its work from."""
        return next(queue for queue in self.queues if queue.unit == worker.instance.unit)

    def lost(self) -> dict[int, str]:
        """Return the members that nobody computes any more, and why."""
        return {member: queue.why for queue in self.queues if queue.lost for member in queue.unit.members}

    @property
    def answering(self) -> frozenset[int]:
        """Positions of the members that some worker can compute now."""
        return frozenset(member for queue in self.queues if queue.ready for member in queue.unit.members)

    def instances(self) -> list[dict[str, Any]]:
        """Return each instance with its process and figures."""
        return [
            {
                "unit": worker.instance.unit.name,
                "device": worker.instance.device.name,
                "state": worker.state.value,
                "pid": None if worker.process is None else worker.process.pid,
                "threads": worker.instance.threads,
                "batch": worker.instance.batch,
                "batches": worker.batches,
                "batch_ms": 1e3 * worker.health.median_seconds,
                "restarts": worker.restarts,
                "why": worker.why,
            }
            for worker in self.workers
        ]

    def start_process(self, worker: WorkerSlot, arena: Arena, now: float) -> "Connection[Any, Any]":
        """Start a process for a worker, and return the connection to it."""
        instance = worker.instance
        members = [self._ensemble.members[place] for place in instance.unit.members]
        start = {
            "runner": self._runner,
            "places": list(instance.unit.members),
            "members": [describe_member(member) for member in members],
            "device": "cpu" if instance.device.kind == "cpu" else instance.device.name,
            "cores": list(instance.device.cores),
            "threads": instance.threads,
            "batch": instance.batch,
            "input_shape": list(self._layout.input_shape),
            "input_dtype": self._layout.input_dtype,
            "path": [path or str(Path.cwd()) for path in sys.path],
        }
        worker.process = ServingProcess(arena, start)
        worker.state, worker.heard, worker.said = WorkerState.STARTING, now, ""
        return worker.process.line

    def stop_processes(self) -> None:
        """Let all processes leave, at the same time."""
        processes = [worker.process for worker in self.workers if worker.process is not None]
        # A closed line ends its process, so all of them end at the same time.
        for process in processes:
            process.line.close()
        for worker in self.workers:
            if worker.process is not None:
                worker.process.wait_for_exit()
                worker.process = None
