"""The dispatch loop of worker processes: assigns rows to slots, slots to idle workers, and results to responses.

Queues, slots, workers and processes belong to one thread, the dispatcher. It runs a pass when a request is admitted, a
worker reports or a deadline has come, and answers what the pass has finished; workers have their next task by then.
"""

import contextlib
import os
import selectors
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from trainwright.ensemble import Ensemble
from trainwright.errors import NotReady, ServeError, TrainwrightError
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.runtime.admission import ENDED, Runtime
from trainwright.serve.runtime.arena import Arena, ArenaShape, SlotReport, receive_message
from trainwright.serve.runtime.batching import Request
from trainwright.serve.runtime.responses import answer_request
from trainwright.serve.runtime.segments import Segments
from trainwright.serve.runtime.worker_slots import CREDITS, WorkerPool, WorkerSlot, WorkerState
from trainwright.serve.service import DeploymentSettings

__all__ = ["WorkerRuntime"]

_WATCH_SECONDS = 0.05  # between looks at the processes; what they say is heard at once


class WorkerRuntime(Runtime):
    """The runtime of a plan with a process per instance: serves requests from `start` until `stop`."""

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
        super().__init__(plan)
        # A slot for each segment that the busiest unit may have under way, one being filled and one being read.
        instances = Counter(instance.unit for instance in plan.instances)
        # Until the first worker says what members answer, without their shape.
        self._layout = ArenaShape(
            slots=CREDITS * max(instances.values()) + 2,
            rows=max(instance.batch for instance in plan.instances),
            members=len(ensemble.members),
            input_shape=input_shape,
            input_dtype=input_dtype,
            output_shape=(),
        )
        self._ensemble, self._settings, self._arena = ensemble, settings, Arena.create()
        self._pool = WorkerPool(ensemble=ensemble, plan=plan, settings=settings, layout=self._layout, runner=runner)
        # In this dispatch pass.
        self._finished: list[Request] = []
        self._segments = Segments(
            ensemble=ensemble,
            slots=self._layout.slots,
            arena=self._arena,
            settings=settings,
            counts=self.counts,
            deliver=self._finished.append,
        )
        self._thread = threading.Thread(target=self._run, name="trainwright-dispatch", daemon=True)
        # Requests that the dispatcher has not seen yet; behind the gate.
        self._inbox: deque[Request] = deque()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._watched = 0.0
        self._started = threading.Event()
        # Why it could not start, or failed.
        self._refusal: TrainwrightError | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, None)

    # From other threads.

    def start(self) -> None:
        """Start the workers and wait until every member can answer; raises ServeError naming the one that cannot."""
        self._thread.start()
        self._started.wait()
        if self._refusal is not None:
            raise self._refusal

    @property
    def answering(self) -> frozenset[int]:
        """Positions of the members that some worker can compute now."""
        return self._pool.answering

    def lost(self) -> Mapping[int, str]:
        """Return the members that are computed no more, and why."""
        return self._pool.lost()

    def instances(self) -> list[dict[str, Any]]:
        """Return each instance with its process and figures."""
        return self._pool.instances()

    def admit(self, request: Request, limit: int) -> None:
        """Queue a request, or raise Overloaded if others wait and its rows would make them more than `limit`."""
        with self.gate:
            self.admit_unless_overloaded(request, limit)
            # Counted at once, because the inbox is read later.
            self.rows += request.rows
            self._inbox.append(request)
            self._wake_dispatcher()

    def stop(self) -> None:
        """End all workers and the thread; requests under way are refused."""
        if self._thread.is_alive():
            with self.gate:
                self.over = True
                self._wake_dispatcher()
            self._thread.join()
        self._arena.close()

    def state(self) -> dict[str, Any]:
        """Return counts and what is in use; may be a moment old."""
        slots = self._segments.slots
        used = len(slots) - len(self._segments.free)
        return {**super().state(), "slots": len(slots), "slots_used": used, "moves": list(self._pool.moves)}

    def _wake_dispatcher(self) -> None:
        # Behind the gate. A pipe that is full wakes it too; one that is closed has nobody to wake.
        with contextlib.suppress(OSError):
            os.write(self._waker, b"\0")

    # The dispatcher.

    def _run(self) -> None:
        """Serve until stopped."""
        refusal: TrainwrightError = NotReady(ENDED, 1.0)
        try:
            while not self.over:
                self._dispatch_once()
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer must hear of it
            refusal = self._refusal = ServeError(f"service: its dispatcher failed ({type(error).__name__}: {error})")
        finally:
            with self.gate:
                self.over = True
            self._take_inbox()
            self._segments.finish_all(refusal)
            self._answer_finished()
            self._selector.close()
            self._pool.stop_processes()
            with self.gate:
                os.close(self._wake)
                os.close(self._waker)
                self._waker = -1
            self._started.set()

    def _dispatch_once(self) -> None:
        due = min(self._watched + _WATCH_SECONDS, self._segments.next_deadline)
        for key, _ in self._selector.select(max(0.0, due - time.monotonic())):
            if key.data is None:
                os.read(key.fd, 4096)
            else:
                self._receive_message(key.data)
        self._take_inbox()
        now = time.monotonic()
        self._segments.expire_requests(now)
        if now >= self._watched + _WATCH_SECONDS:
            self._watched = now
            self._check_processes(now)
        self._form_segments(now)
        for queue in self._pool.queues:
            queue.dispatch(now)
        with self.gate:
            self.rows = self._segments.batcher.rows + sum(request.rows for request in self._inbox)
        self._answer_finished()

    def _take_inbox(self) -> None:
        while self._inbox:
            self._segments.admit(self._inbox.popleft())

    def _answer_finished(self) -> None:
        while self._finished:
            answer_request(self._ensemble, self._finished.pop(0))
            with self.gate:
                self.open -= 1

    def _form_segments(self, now: float) -> None:
        """Make segments of waiting rows while every unit that they need will have room for them."""
        segments = self._segments
        queues = [queue for queue in self._pool.queues if not queue.lost]
        # Segments are formed only while every unit has room: rows that wait longer share larger batches.
        while segments.batcher.rows and segments.free and all(queue.has_room for queue in queues):
            slot = segments.form(self._layout.rows, self._pool.lost())
            for queue in queues:
                queue.add(slot, now)

    # Messages.

    def _receive_message(self, worker: WorkerSlot) -> None:
        process = worker.process
        if process is None:
            return
        try:
            message = receive_message(process.line)
        except (EOFError, OSError):
            self._restart_worker(worker, "")
            return
        worker.heard = time.monotonic()
        if not isinstance(message, list):
            self._handle_message(worker, message)
        elif message:  # an empty one says no more than that the worker is alive
            report = SlotReport(*message)
            worker.health.batch(report.seconds)
            worker.batches += 1
            self._segments.record_prediction(report.slot, report.generation, report.member)
            self._finish_members(worker, report.slot, report.generation, {report.member})

    def _handle_message(self, worker: WorkerSlot, message: Mapping[str, Any]) -> None:
        if "built" in message:
            self._handle_built(worker, message["built"])
        elif "refused" in message:
            worker.said = message["refused"]
            if not self._started.is_set():
                self._refuse_start(f"unit {worker.instance.unit.name}: {worker.said}")
        elif message["broken"]:  # the process ends itself, and its work goes to the next one
            worker.said = message["why"]
        else:
            number, generation = message["failed"]
            trials = ", ".join(str(self._pool.trials[member]) for member in message["members"])
            if slot := self._segments.find(number, generation):
                self._segments.refuse(slot, f"trial {trials} refused the rows ({message['why']})")
            self._finish_members(worker, number, generation, set(message["members"]))

    def _finish_members(self, worker: WorkerSlot, number: int, generation: int, members: set[int]) -> None:
        if slot := worker.finish_members(number, generation, members):
            self._segments.release(slot, leases=1)

    # Processes.

    def _check_processes(self, now: float) -> None:
        for worker in self._pool.workers:
            process = worker.process
            if worker.state is WorkerState.WAITING and now >= worker.restart_at:
                line = self._pool.start_process(worker, self._arena, now)
                self._selector.register(line, selectors.EVENT_READ, worker)
            elif process is not None and process.ended and not process.line.poll():
                self._restart_worker(worker, "")
            # Reports restart the clock, so that a slow batch is no hanging worker.
            elif worker.state is WorkerState.STARTING and now > worker.heard + self._settings.start_seconds:
                self._restart_worker(worker, f"did not start within {self._settings.start_seconds:g} s")
            elif worker.in_flight and worker.health.is_hung(now - worker.heard):
                self._restart_worker(worker, f"was silent for {now - worker.heard:.1f} s")

    def _handle_built(self, worker: WorkerSlot, message: Mapping[str, Any]) -> None:
        shape = tuple(message["output_shape"])
        if not self._layout.output_shape:
            self._layout = replace(self._layout, output_shape=shape)
            self._arena.grow(self._layout)
        elif shape != self._layout.output_shape:
            self._refuse_start(
                f"unit {worker.instance.unit.name}: answers with {shape} a row, others with "
                f"{self._layout.output_shape}; allowed: members with the same outputs"
            )
            return
        if worker.process is not None:
            worker.process.send({"map": asdict(self._layout)})
        worker.state = WorkerState.READY
        worker.health.batch(message["seconds"])
        worker.rate = message["rows"] / max(message["seconds"], 1e-9)
        # A worker of a moved unit joins once it can compute.
        self.counts["moved"] += self._pool.join(worker)
        if all(queue.ready for queue in self._pool.queues):
            self.rate = min(queue.rate for queue in self._pool.queues)
            self._started.set()

    def _refuse_start(self, why: str) -> None:
        self._refusal = self._refusal or ServeError(why)
        self._started.set()

    def _restart_worker(self, worker: WorkerSlot, why: str) -> None:
        """End a worker's process, requeue its requests in flight, and decide when the next process starts."""
        if worker.process is None:
            return
        # Its line is closed with it, and a closed one cannot be selected.
        self._selector.unregister(worker.process.line)
        how = worker.process.kill()
        worker.process = None
        queue = self._pool.queue_of(worker)
        for slot in queue.requeue(worker):
            self._segments.release(slot, leases=1)
        worker.why = f"its worker {why or how}" + (f" ({worker.said})" if worker.said and not why else "")
        now = time.monotonic()
        pause = worker.health.restart_delay(now)
        if pause is not None:
            worker.state, worker.restart_at, worker.restarts = WorkerState.WAITING, now + pause, worker.restarts + 1
            self.counts["restarts"] += 1
            return
        worker.state = WorkerState.LOST
        # Other workers of the unit take over its queue.
        if any(other.state is not WorkerState.LOST for other in queue.workers):
            return
        # Nobody will compute what waits; requests are told who is missing.
        queue.pending.clear()
        if not self._started.is_set():
            self._refuse_start(f"unit {queue.unit.name}: cannot start: {queue.why}")
        elif self._settings.move:
            self.plan = self._pool.move_unit(queue)
        missing = dict.fromkeys(queue.unit.members, queue.why)
        for slot in self._segments.slots:
            self._segments.drop_members(slot, missing)
