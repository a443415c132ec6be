"""The pool of worker processes: starts, restarts and ends them, knows lost members, and moves lost units elsewhere."""

import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainwright.ensemble import Ensemble
from trainwright.errors import AllocationError
from trainwright.serve.placement.deployment_plan import DeploymentPlan, Instance, fail_over
from trainwright.serve.runtime.arena import Arena, ArenaShape
from trainwright.serve.runtime.member_runners import describe_member
from trainwright.serve.runtime.worker_slots import ServingProcess, UnitQueue, WorkerHealth, WorkerSlot, WorkerState
from trainwright.serve.service import DeploymentSettings

__all__ = ["WorkerPool"]


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
