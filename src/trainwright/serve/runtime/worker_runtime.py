"""Computes requests in worker processes: assigns rows to slots, slots to idle workers, and results to responses.

Queues, slots and workers are touched only by the thread that holds the dispatching lock. The dispatcher's own thread
runs a pass when a worker reports or a timer is due, and it alone touches processes. Other threads leave actions in an
inbox; one that admits a request while nobody dispatches runs a pass itself, so that rows reach an idle worker without
waking another thread. A pass ends with the answers of finished requests; workers have their next task by then.
"""

import contextlib
import math
import os
import selectors
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NoReturn

from trainwright.ensemble import Ensemble
from trainwright.errors import NotReady, ServeError, TrainwrightError
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.runtime.arena import Arena, ArenaShape, SlotReport, receive_message
from trainwright.serve.runtime.batching import Request
from trainwright.serve.runtime.responses import ENDED, answer_request, overload_refusal
from trainwright.serve.runtime.segments import Segments
from trainwright.serve.runtime.worker_pool import WorkerPool, credits_of
from trainwright.serve.runtime.worker_slots import UnitQueue, WorkerSlot, WorkerState
from trainwright.serve.service import DeploymentSettings

__all__ = ["WorkerRuntime"]

_COUNTS = ("requests", "rows", "segments", "degraded", "late", "restarts", "moved", "duplicates", "stale")
_TICK_SECONDS = 0.25
_WATCH_SECONDS = 0.05  # between looks at the processes; what they say is heard at once


class WorkerRuntime:
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
        # A slot for each segment that the busiest unit may have under way, one being filled and one being read.
        tasks: Counter[tuple[int, ...]] = Counter()
        for instance in plan.instances:
            tasks[instance.unit.members] += credits_of(instance, settings.segment_rows)
        # Until the first worker says what members answer, without their shape.
        self._layout = ArenaShape(
            slots=max(tasks.values()) + 2,
            rows=settings.segment_rows,
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
            deliver=self._finished.append,
        )
        self._thread = threading.Thread(target=self._run, name="trainwright-dispatch", daemon=True)
        self._inbox: deque[Callable[[], None]] = deque()
        # Of all that is not behind the gate.
        self._dispatching = threading.Lock()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._asleep = False
        # The last look at the processes, and when the next pass is due.
        self._watched = self._due = -math.inf
        # Of the three numbers below.
        self._gate = threading.Lock()
        # Rows that were admitted and are not among the waiting yet.
        self._entering = 0
        # Requests that were admitted and not answered.
        self.open = 0
        # Requests that were refused because too many rows waited.
        self.shed = 0
        # Nothing is admitted any more.
        self.over = False
        # Rows a second that the slowest unit can compute, by what its workers said at start.
        self.rate = 1.0
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
    def plan(self) -> DeploymentPlan:
        """The plan with the units where they are now."""
        return self._pool.plan

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
        with self._gate:
            if self.over:
                raise NotReady(ENDED, 1.0)
            # An empty queue admits any request, or one larger than the limit could never be served.
            waiting = self.rows
            if waiting and waiting + request.rows > limit:
                self.shed += 1
                raise overload_refusal(waiting, request.rows, limit, self.rate)
            # Counted at once, because the inbox is read later.
            self._entering += request.rows
            self.open += 1
            # Within the gate, so that the thread's end sees it.
            self._inbox.append(lambda: self._admit_request(request))
        if self._dispatching.acquire(blocking=False):
            try:
                self._dispatch_from_caller()
            finally:
                self._dispatching.release()
        else:
            self._wake_thread()

    def stop(self) -> None:
        """End all workers and the thread; requests under way are refused."""
        if self._thread.is_alive():
            self._enqueue_action(self._mark_over)
            self._thread.join()
        self._arena.close()

    @property
    def rows(self) -> int:
        """Rows that wait for a slot."""
        return self._segments.batcher.rows + self._entering

    def state(self) -> dict[str, Any]:
        """Return counts and what is in use; may be a moment old."""
        segments = self._segments
        return {
            **{name: segments.counts[name] for name in _COUNTS},
            "shed": self.shed,
            "slots": len(segments.slots),
            "slots_used": len(segments.slots) - len(segments.free),
            "open": self.open,
            "moves": list(self._pool.moves),
        }

    def _enqueue_action(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        self._wake_thread()

    def _wake_thread(self) -> None:
        """End the thread's sleep."""
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(BlockingIOError):
                os.write(self._waker, b"\0")

    def _dispatch_from_caller(self) -> None:
        """Take in what was admitted and send it out, for the thread that admitted it."""
        due = self._due
        try:
            self._run_inbox()
            now = time.monotonic()
            self._segments.expire(now)
            self._assign_work(now)
        except Exception as error:  # noqa: BLE001 - the thread fails of it, and tells everybody
            self._inbox.append(partial(_raise_error, error))
            due = math.inf
        if self._due < due:
            self._wake_thread()

    # The thread.

    def _run(self) -> None:
        """Serve until stopped."""
        refusal: TrainwrightError = NotReady(ENDED, 1.0)
        try:
            while not self.over:
                self._dispatch_once()
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer must hear of it
            refusal = self._refusal = ServeError(f"service: its dispatcher failed ({type(error).__name__}: {error})")
        finally:
            with self._gate:
                self.over = True
            with self._dispatching:
                while self._inbox:
                    # An error of another thread's pass: there is nothing left to fail.
                    with contextlib.suppress(Exception):
                        self._inbox.popleft()()
                self._segments.finish_all(refusal)
                self._answer_finished()
            self._selector.close()
            self._pool.close()
            os.close(self._wake)
            os.close(self._waker)
            self._started.set()

    def _dispatch_once(self) -> None:
        self._asleep = True
        events = self._selector.select(0.0 if self._inbox else max(0.0, self._due - time.monotonic()))
        self._asleep = False
        with self._dispatching:
            for key, _ in events:
                if key.data is None:
                    os.read(key.fd, 4096)
                else:
                    self._receive_message(key.data)
            self._run_inbox()
            now = time.monotonic()
            self._segments.expire(now)
            if now >= self._watched + _WATCH_SECONDS:
                self._watched = now
                self._check_processes(now)
            self._assign_work(now)

    def _run_inbox(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _assign_work(self, now: float) -> None:
        """Give workers what they have room for, then answer what is finished."""
        self._form_segments(now)
        for queue in self._pool.queues:
            queue.send(now)
        self._answer_finished()
        self._due = now + self._until_next(now)

    def _answer_finished(self) -> None:
        while self._finished:
            answer_request(self._ensemble, self._finished.pop(0))
            with self._gate:
                self.open -= 1

    def _until_next(self, now: float) -> float:
        # The earliest of all that may be due: deadlines, restarts, rows whose wait for company is over.
        due = [now + _TICK_SECONDS, self._segments.next_deadline]
        watch = self._watched + _WATCH_SECONDS
        due += [max(worker.restart_at, watch) for worker in self._pool.workers if worker.state is WorkerState.WAITING]
        # What is ripe and still waits, waits for room, of which a report will tell.
        due += [one for one in [self._ripe_at()] if one > now]
        return max(0.0, min(due) - now)

    def _ripe_at(self) -> float:
        """Return when the first rows have waited for company long enough; infinity if no rows wait."""
        waiting = self._segments.batcher.requests
        return waiting[0].admitted + self._settings.max_delay_ms / 1e3 if waiting else math.inf

    def _admit_request(self, request: Request) -> None:
        with self._gate:
            self._entering -= request.rows
        self._segments.admit(request)

    def _mark_over(self) -> None:
        self.over = True

    # Work.

    def _form_segments(self, now: float) -> None:
        """Make segments of waiting rows while every unit that they need will have room for them."""
        segments, limit = self._segments, self._layout.rows
        queues = [queue for queue in self._pool.queues if not queue.lost]
        # Segments are formed only while every unit has room: rows that wait longer share larger batches.
        while segments.batcher.rows and segments.free and all(queue.has_room for queue in queues):
            if segments.batcher.rows < limit and now < self._ripe_at():
                break
            slot = segments.form(limit, self._pool.lost())
            for queue in queues:
                queue.add(slot, now)

    def _receive_message(self, worker: WorkerSlot) -> None:
        process = worker.process
        if process is None:
            return
        try:
            message = receive_message(process.line)
        except (EOFError, OSError):
            self._handle_failure(worker, "")
            return
        worker.heard = time.monotonic()
        if isinstance(message, list):
            for report in message:
                self._handle_report(worker, SlotReport(*report))
        else:
            self._handle_message(worker, message)

    def _handle_report(self, worker: WorkerSlot, report: SlotReport) -> None:
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
                queue = self._pool.open(worker, self._arena, now)
                self._selector.register(queue, selectors.EVENT_READ, worker)
            elif process is not None and process.ended and not process.line.poll():
                self._handle_failure(worker, "")
            # Reports restart the clock, so that a slow batch is no hanging worker.
            elif worker.state is WorkerState.STARTING and now > worker.heard + self._settings.start_seconds:
                self._handle_failure(worker, f"did not start within {self._settings.start_seconds:g} s")
            elif worker.in_flight and worker.health.hung(now - worker.heard):
                self._handle_failure(worker, f"was silent for {now - worker.heard:.1f} s")

    def _handle_built(self, worker: WorkerSlot, message: Mapping[str, Any]) -> None:
        shape = tuple(message["output_shape"])
        if not self._layout.output_shape:
            self._layout = replace(self._layout, output_shape=shape)
            self._arena.grow(self._layout)
        elif shape != self._layout.output_shape:
            self._refuse_start(
                f"unit {worker.instance.unit.name}: answers with {shape} a row, others with "
                f"{self._layout.output_shape}; "
                "allowed: members with the same outputs"
            )
            return
        if worker.process is not None:
            worker.process.send({"map": asdict(self._layout)})
        worker.state = WorkerState.READY
        worker.health.batch(message["seconds"])
        worker.rate = message["rows"] / max(message["seconds"], 1e-9)
        # A worker of a moved unit joins once it can compute.
        self._segments.counts["moved"] += self._pool.join(worker)
        if all(queue.ready for queue in self._pool.queues):
            self.rate = min(queue.rate for queue in self._pool.queues)
            self._started.set()

    def _refuse_start(self, why: str) -> None:
        self._refusal = self._refusal or ServeError(why)
        self._started.set()

    def _handle_failure(self, worker: WorkerSlot, why: str) -> None:
        """End a worker's process, requeue its work, and decide when the next process starts."""
        if worker.process is None:
            return
        # Its line is closed with it, and a closed one cannot be selected.
        self._selector.unregister(worker.process.line)
        how = worker.process.kill()
        worker.process = None
        queue = self._pool.queue_of(worker)
        for slot in queue.take_back(worker):
            self._segments.release(slot, leases=1)
        worker.why = f"its worker {why or how}" + (f" ({worker.said})" if worker.said and not why else "")
        now = time.monotonic()
        pause = worker.health.failed(now)
        if pause is None:
            worker.state = WorkerState.LOST
            self._failed_permanently(queue)
        else:
            worker.state, worker.restart_at, worker.restarts = WorkerState.WAITING, now + pause, worker.restarts + 1
            self._segments.counts["restarts"] += 1

    def _failed_permanently(self, queue: UnitQueue) -> None:
        # Other workers of the unit take over its queue.
        if any(worker.state is not WorkerState.LOST for worker in self._pool.workers_of(queue.unit)):
            return
        # Nobody will compute what waits; requests are told who is missing.
        queue.pending.clear()
        if not self._started.is_set():
            self._refuse_start(f"unit {queue.unit.name}: cannot start: {queue.why}")
        elif self._settings.move:
            self._pool.move_unit(queue)
        missing = dict.fromkeys(queue.unit.members, queue.why)
        for slot in self._segments.slots:
            self._segments.drop_members(slot, missing)


def _raise_error(error: Exception) -> NoReturn:
    raise error
