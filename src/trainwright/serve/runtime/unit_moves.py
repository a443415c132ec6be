"""Moves units whose workers have all failed permanently to other devices, one after the other.

Each move takes memory that the next one then lacks. The search runs on a thread of its own, because placing a unit may
take longer than a batch; its result is applied by the dispatcher.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from trainwright.errors import TrainwrightError
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.runtime.worker_pool import WorkerPool
from trainwright.serve.runtime.worker_slots import UnitQueue, WorkerSlot, WorkerState

__all__ = ["UnitMoves"]


class UnitMoves:
    """The moves so far, and the units that wait for one; `enqueue` runs an action on the dispatcher's thread."""

    def __init__(self, pool: WorkerPool, enqueue: Callable[[Callable[[], None]], None]) -> None:
        self._pool, self._enqueue = pool, enqueue
        self.moves: list[dict[str, Any]] = []  # unit, from, to, why, and what became of it
        self._waiting: deque[UnitQueue] = deque()
        self._searching = False

    def request(self, queue: UnitQueue) -> None:
        """Search other devices for a unit, after those that wait."""
        self._waiting.append(queue)
        self._search_next()

    def join(self, queue: UnitQueue, worker: WorkerSlot) -> bool:
        """Let a worker of a moved unit share its work, now that it can; say whether that completes a move."""
        queue.workers.append(worker)
        queue.outlook = ""
        move = next(move for move in reversed(self.moves) if move["unit"] == queue.unit.name)
        starting: bool = move["state"] == "starting"
        if starting:
            move["state"] = "done"
        return starting

    def _search_next(self) -> None:
        if self._searching or not self._waiting:
            return
        self._searching = True
        queue = self._waiting.popleft()
        lost = [worker.instance for worker in self._pool.workers if worker.state is WorkerState.LOST]

        def search_placement() -> None:
            try:
                plan = self._pool.plan_failover(queue.unit, lost)
            except Exception as error:  # noqa: BLE001 - responses say why the unit is missing
                why = str(error) if isinstance(error, TrainwrightError) else f"{type(error).__name__}: {error}"
                self._enqueue(partial(self._apply_plan, queue, None, why))
            else:
                self._enqueue(partial(self._apply_plan, queue, plan, ""))

        threading.Thread(target=search_placement, name="trainwright-place", daemon=True).start()

    def _apply_plan(self, queue: UnitQueue, plan: DeploymentPlan | None, refusal: str) -> None:
        workers = self._pool.workers_of(queue.unit)
        devices = sorted({worker.instance.device.name for worker in workers})
        move = {"unit": queue.unit.name, "from": devices, "why": workers[-1].why}
        if plan is None:
            queue.outlook = f"; it was not moved: {refusal}"
            self.moves.append({**move, "to": [], "state": "refused", "refusal": refusal})
        else:
            places = [worker.instance.device.name for worker in self._pool.change(plan, queue.unit)]
            queue.outlook = f"; it restarts on {', '.join(places)}"
            self.moves.append({**move, "to": places, "state": "starting"})
        self._searching = False
        self._search_next()
