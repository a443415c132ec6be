"""The workers of a plan: how their processes start and end, which members are lost, and where lost units move to."""

import math
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainwright.ensemble import Ensemble
from trainwright.errors import AllocationError
from trainwright.serve.placement.deployment_plan import DeploymentPlan, Instance
from trainwright.serve.placement.failover import fail_over
from trainwright.serve.placement.memory_model import MemoryModel
from trainwright.serve.placement.units import Unit
from trainwright.serve.runtime.arena import Arena, ArenaShape
from trainwright.serve.runtime.member_runners import describe_member
from trainwright.serve.runtime.worker_slots import Health, ServingProcess, UnitQueue, WorkerSlot, WorkerState
from trainwright.serve.service import DeploymentSettings

__all__ = ["WorkerPool", "credits_of"]

_LINE_HOLDS = 128


class WorkerPool:
    """All workers of a plan, and the descriptions that their processes start from."""

    def __init__(
        self, *, ensemble: Ensemble, plan: DeploymentPlan, settings: DeploymentSettings, layout: ArenaShape, runner: str
    ) -> None:
        self.trials = [member.trial for member in ensemble.members]
        self.plan = plan
        self._ensemble, self._layout, self._runner, self._settings = ensemble, layout, runner, settings
        self.workers = [self._make_worker(instance) for instance in plan.instances]
        # Unit, from, to, why, and what became of it.
        self.moves: list[dict[str, Any]] = []
        self.queues = [UnitQueue(unit=unit, workers=self.workers_of(unit)) for unit in plan.units]

    def move_unit(self, queue: UnitQueue) -> None:
        """Place a unit whose workers have all failed permanently on other devices, if one has the memory for it.

        Its old workers stay listed, as lost; the new ones `join` its queue once they can compute.
        """
        unit, old = queue.unit, self.workers_of(queue.unit)
        lost = [worker.instance for worker in self.workers if worker.state is WorkerState.LOST]
        move = {"unit": unit.name, "from": sorted({one.instance.device.name for one in old}), "why": old[-1].why}
        try:
            memory = MemoryModel.assumed(self._ensemble) if self.plan.memory is None else self.plan.memory
            self.plan = fail_over(self.plan, unit, lost, memory)
        except AllocationError as error:
            queue.outlook = f"; it was not moved: {error}"
            self.moves.append({**move, "to": [], "state": "refused", "refusal": str(error)})
            return
        workers = [self._make_worker(instance) for instance in self.plan.instances if instance.unit == unit]
        self.workers += workers
        places = [worker.instance.device.name for worker in workers]
        queue.outlook = f"; it restarts on {', '.join(places)}"
        self.moves.append({**move, "to": places, "state": "starting"})

    def join(self, worker: WorkerSlot) -> bool:
        """Let a worker that can compute now share its unit's work; say whether that completes a move."""
        queue = self.queue_of(worker)
        if worker in queue.workers:
            return False
        queue.workers.append(worker)
        queue.outlook = ""
        move = next(move for move in reversed(self.moves) if move["unit"] == queue.unit.name)
        completes: bool = move["state"] == "starting"
        move["state"] = "done"
        return completes

    def _make_worker(self, instance: Instance) -> WorkerSlot:
        return WorkerSlot(
            instance=instance,
            health=Health(settings=self._settings),
            credits=credits_of(instance, self._layout.rows),
        )

    def queue_of(self, worker: WorkerSlot) -> UnitQueue:
        """Return the queue that a worker takes its work from."""
        return next(queue for queue in self.queues if queue.unit == worker.instance.unit)

    def workers_of(self, unit: Unit) -> list[WorkerSlot]:
        """Return the workers of a unit, also those that failed permanently or are not built yet."""
        return [worker for worker in self.workers if worker.instance.unit == unit]

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
                "batch": worker.instance.batch,
                "batches": worker.batches,
                "batch_ms": 1e3 * worker.health.median_seconds,
                "restarts": worker.restarts,
                "why": worker.why,
            }
            for worker in list(self.workers)
        ]

    def open(self, worker: WorkerSlot, arena: Arena, now: float) -> "Connection[Any, Any]":
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

    def close(self) -> None:
        """Let all processes leave, at the same time."""
        processes = [worker.process for worker in self.workers if worker.process is not None]
        # A closed line ends its process, so all of them end at the same time.
        for process in processes:
            process.line.close()
        for worker in self.workers:
            if worker.process is not None:
                worker.process.leave()
                worker.process = None


def credits_of(instance: Instance, segment_rows: int) -> int:
    """Return how many segments an instance may have at once: those of one batch, and as many at hand.

    Never more than its connection holds while the instance computes and reads nothing: about 270 messages on Linux.
    """
    return min(_LINE_HOLDS, 2 * math.ceil(instance.batch / segment_rows))
