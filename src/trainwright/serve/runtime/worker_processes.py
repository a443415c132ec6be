"""Computes requests in worker processes: shared memory, the processes, the dispatcher's and the combiner's thread."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from trainwright.ensemble import Ensemble
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.runtime.arena import Arena, ArenaShape
from trainwright.serve.runtime.batching import Request
from trainwright.serve.runtime.combiner import Combiner
from trainwright.serve.runtime.dispatch import Dispatcher
from trainwright.serve.runtime.pool import ServingPool, credits_of
from trainwright.serve.runtime.settings import DeploymentSettings
from trainwright.serve.runtime.worker_slots import WorkerState

__all__ = ["WorkerRuntime"]


class WorkerRuntime:
    """The runtime of a plan with a process per instance."""

    def __init__(
        self,
        ensemble: Ensemble,
        plan: DeploymentPlan,
        *,
        settings: DeploymentSettings,
        input_shape: tuple[int, ...],
        input_dtype: str,
        runner: str,
    ) -> None:
        # A slot for each segment that the busiest unit may have under way, one being filled and one being read.
        tasks: Counter[tuple[int, ...]] = Counter()
        for instance in plan.instances:
            tasks[instance.unit.members] += credits_of(instance, settings.segment_rows)
        layout = ArenaShape(
            slots=max(tasks.values()) + 2,
            rows=settings.segment_rows,
            members=len(ensemble.members),
            input_shape=input_shape,
            input_dtype=input_dtype,
            output_shape=(),
        )
        self._pool = ServingPool(ensemble=ensemble, plan=plan, settings=settings, layout=layout, runner=runner)
        self._arena = Arena.create()
        self._combiner = Combiner(ensemble)
        self._dispatcher = Dispatcher(
            pool=self._pool, arena=self._arena, combiner=self._combiner, settings=settings, layout=layout
        )

    def start(self) -> None:
        """Start the workers and wait until every member can answer; raises ServeError naming the one that cannot."""
        self._combiner.start()
        self._dispatcher.start()
        self._dispatcher.started.wait()
        if self._dispatcher.refusal is not None:
            raise self._dispatcher.refusal

    @property
    def plan(self) -> DeploymentPlan:
        """The plan with the units where they are now."""
        return self._pool.plan

    @property
    def over(self) -> bool:
        """Whether nothing is admitted any more."""
        return self._dispatcher.over

    @property
    def open(self) -> int:
        """Requests that were admitted and not answered."""
        return self._dispatcher.open if self._dispatcher.is_alive() else 0

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._dispatcher.rows

    @property
    def rate(self) -> float:
        """Rows a second that the slowest unit can compute."""
        return self._dispatcher.rate

    @property
    def answering(self) -> frozenset[int]:
        """Positions of the members that some worker can compute now."""
        return frozenset(member for queue in self._pool.queues if queue.ready for member in queue.unit.members)

    def lost(self) -> Mapping[int, str]:
        """Return the members that are computed no more, and why."""
        return self._pool.lost()

    def admit(self, request: Request, limit: int) -> None:
        """Queue a request; Overloaded if more than `limit` rows would wait."""
        self._dispatcher.admit(request, limit)

    def stop(self) -> None:
        """End the workers and threads; requests under way are refused."""
        self._dispatcher.stop()
        self._combiner.stop()
        self._arena.close()

    def state(self) -> dict[str, Any]:
        """Return counts and what is in use; may be a moment old."""
        return self._dispatcher.state()

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
            for worker in list(self._pool.workers)
        ]

    def not_ready(self) -> int:
        """Return how many instances cannot compute now."""
        return sum(worker.state is not WorkerState.READY for worker in self._pool.workers)
