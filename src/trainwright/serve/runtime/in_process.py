"""Computes requests in this process: for small batches, which take less time than handing them to a worker process.

Whoever submits a request computes it, so that small networks pay for no other thread: a plain thread at once, an event
loop after it has read what all its connections have sent, as one batch. What is longer than a moment, or arrives while
another thread computes, waits for a thread of the runtime, which then computes it together in batches. All runtimes of
a process share its cores: one computes at a time, with as many threads as were fastest at the start. These are set for
the threads that compute, and for torch's default, until the end.
"""

import asyncio
import math
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.ensemble.library.cost import time_calls
from trainwright.ensemble.library.networks import apply_link, shape_outputs
from trainwright.ensemble.metrics import Array
from trainwright.errors import DeadlinePassed, NotReady, RequestError, TrainwrightError
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.runtime.admission import ENDED, Runtime
from trainwright.serve.runtime.batching import Request
from trainwright.serve.runtime.member_runners import MemberLoop
from trainwright.serve.runtime.responses import answer_of, make_answer
from trainwright.serve.service import Response

if TYPE_CHECKING:
    import torch

__all__ = ["InProcessRuntime"]

_START_SECONDS = 0.2  # for which batches are timed at the start, each number of threads half as long
_GROWTH = 4  # from one batch that is timed to the next
_AS_FAST = 0.95  # of most rows a second
_MOMENT_SECONDS = 5e-3  # that an event loop may compute, for its other connections wait meanwhile
_BATCH_SECONDS = 0.05  # beyond which larger batches gain nothing, but take memory and keep others waiting
_THREADS_GAIN = 2.0  # over one thread that several must show, for beside other processes they may lose all of it
_computing = threading.Lock()  # held by the thread that computes, for any runtime of this process


class InProcessRuntime(Runtime):
    """The runtime of a plan with `in_process`: the members' networks, a queue, and a thread for what waits in it."""

    def __init__(
        self, ensemble: Ensemble, plan: DeploymentPlan, *, input_shape: tuple[int, ...], input_dtype: str
    ) -> None:
        super().__init__(plan)
        self._ensemble = ensemble
        self._batch = plan.instances[0].batch
        self._input_shape, self._dtype = input_shape, np.dtype(input_dtype)
        self._queue: deque[Request] = deque()
        self._wake = threading.Event()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run_thread, name="trainwright-in-process", daemon=True)
        self._loop: MemberLoop
        # Weights that sum to 1, where the outputs are logits of a weighted mean.
        self._shares: Array | None = None
        self._batch_seconds = 0.0
        # What an event loop computes itself, rows at most; and whether it is about to.
        self._moment_rows, self._scheduled = 0, False
        self._threads, self._threads_before = 1, 0
        self._everyone = frozenset(range(len(ensemble.members)))

    def start(self) -> None:
        """Load the members and compute a batch of zeros with each, which raises what a member raises."""
        import torch

        self._threads_before = torch.get_num_threads()
        self._loop = MemberLoop(self._ensemble.members, device="cpu")
        if self._ensemble.rule.name == "weighted" and all(one.link == "softmax" for one in self._ensemble.members):
            self._shares = np.array(self._ensemble.weights) / sum(self._ensemble.weights)
        self._thread.start()
        self._started.result()

    def _time_batches(self) -> None:
        """Choose batch, threads of an operation, and what an event loop may compute, by the times of batches."""
        batches: list[Array] = []
        rows, seconds = 1, 0.0
        while not batches or (len(batches[-1]) < self._batch and seconds <= _BATCH_SECONDS):
            batches.append(np.zeros((rows, *self._input_shape), self._dtype))
            self._compute_outputs(batches[-1])
            # This thread's own seconds: what else runs here does not make batches small.
            began = time.thread_time()
            self._compute_outputs(batches[-1])
            seconds, rows = time.thread_time() - began, min(_GROWTH * rows, self._batch)
        # The last one took too long, unless it is the only one.
        if seconds > _BATCH_SECONDS and len(batches) > 1:
            batches.pop()
        calls = [partial(self._compute_outputs, x) for x in batches]
        most = self.plan.instances[0].threads
        timed = {1: math.inf, most: math.inf}
        # In turns, for in one the machine may be busy; what a large batch gains a single row may lose.
        for threads in (1, most) * 2:
            self._threads = threads
            taken = math.prod(time_calls([calls[0], calls[-1]], _START_SECONDS / 4))
            timed[threads] = min(timed[threads], taken)
        self._threads = most if timed[1] > _THREADS_GAIN * timed[most] else 1
        # One thread's own seconds, likewise.
        clock = time.thread_time if self._threads == 1 else time.perf_counter
        found = dict(zip(map(len, batches), time_calls(calls, _START_SECONDS, clock), strict=True))
        rates = {size: size / seconds for size, seconds in found.items()}
        # A larger one gains nothing, and may be too large for the caches once other processes use them too.
        self._batch = min(size for size, rate in rates.items() if rate >= _AS_FAST * max(rates.values()))
        self._batch_seconds, self.rate = found[self._batch], rates[self._batch]
        self._moment_rows = max((size for size, seconds in found.items() if seconds <= _MOMENT_SECONDS), default=0)

    @property
    def answering(self) -> frozenset[int]:
        """Positions of the members that can be computed now: all, until the end."""
        return frozenset() if self.over else self._everyone

    def admit(self, request: Request, limit: int) -> None:
        """Compute a request, or queue it behind what is computed; Overloaded if more than `limit` rows would wait."""
        with self.gate:
            self.admit_unless_overloaded(request, limit)
            loop = _running_loop()
            # A plain thread computes at once what nobody else waits before.
            mine = loop is None and not self._queue and _computing.acquire(blocking=False)
            if not mine:
                self._queue.append(request)
                self.rows += request.rows
                # An event loop computes once it has read what else has come.
                if loop is not None and self.rows <= self._moment_rows:
                    if not self._scheduled:
                        self._scheduled = True
                        loop.call_soon(self._compute_moment)
                    return
        if mine:
            try:
                self._answer_all([request])
            finally:
                _computing.release()
        if self._queue:
            self._wake.set()

    def stop(self) -> None:
        """End the thread; requests that wait are refused."""
        with self.gate:
            self.over = True
            left = list(self._queue)
            self._queue.clear()
            self.rows = 0
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._threads_before:
            import torch

            torch.set_num_threads(self._threads_before)
        for request in left:
            self._end_request(request, NotReady(ENDED, 1.0))

    def instances(self) -> list[dict[str, Any]]:
        """Return the one instance: this process."""
        [instance] = self.plan.instances
        return [
            {
                "unit": instance.unit.name,
                "device": instance.device.name,
                "state": "lost" if self.over else "ready",
                "pid": os.getpid(),
                "threads": self._threads,
                "batch": self._batch,
                "batches": self.counts["segments"],
                "batch_ms": 1e3 * self._batch_seconds,
                "restarts": 0,
                "why": "",
            }
        ]

    def _run_thread(self) -> None:
        try:
            # By the thread that computes large batches: in another one's memory they take another time.
            self._time_batches()
        except BaseException as error:  # noqa: BLE001 - `start` raises it
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        while not self.over:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                with _computing:
                    self._answer_all(self._take_requests(self._batch))

    def _compute_moment(self) -> None:
        """Compute what waits on an event loop; in the thread if it is too much, or others compute."""
        self._scheduled = False
        if self.rows <= self._moment_rows and _computing.acquire(blocking=False):
            try:
                self._answer_all(self._take_requests(self._moment_rows))
            finally:
                _computing.release()
        if self._queue:
            self._wake.set()

    def _take_requests(self, most: int) -> list[Request]:
        """Return the first request and those behind it, up to so many rows."""
        taken: list[Request] = []
        rows = 0
        with self.gate:
            while self._queue and (not taken or rows + self._queue[0].rows <= most):
                taken.append(self._queue.popleft())
                rows += taken[-1].rows
            self.rows -= rows
        return taken

    def _answer_all(self, requests: Sequence[Request]) -> None:
        """Answer these requests, or refuse them if the thread is interrupted: other threads wait for them."""
        try:
            if wanted := [request for request in requests if self._start_request(request)]:
                self._compute_batch(wanted)
        except BaseException:
            for request in requests:
                self._end_request(request, NotReady("service: was interrupted while it computed; try again", 1.0))
            raise

    def _start_request(self, request: Request) -> bool:
        """Say whether a request is still wanted; one whose deadline has passed is refused here."""
        if request.future.set_running_or_notify_cancel():
            return not self._refuse_late(request)
        with self.gate:
            self.open -= 1
        return False

    def _compute_batch(self, requests: Sequence[Request]) -> None:
        """Compute requests together; if a member refuses them, each alone, to find the one."""
        ensemble = self._ensemble
        try:
            outputs = self._compute_outputs(self._join_rows(requests))
        except RequestError as error:
            if len(requests) == 1:
                self._end_request(requests[0], error)
            else:
                for request in requests:
                    self._compute_batch([request])
            return
        self.counts["segments"] += 1
        pooled: Array | None = None
        predictions: dict[int, Array] = {}
        if self._shares is not None and not any(one.options.members or one.options.uncertainty for one in requests):
            pooled = _weighted_probabilities(outputs, self._shares)
        if pooled is None or not math.isfinite(pooled.sum()):
            pooled = None
            for place, (output, member) in enumerate(zip(outputs, ensemble.members, strict=True)):
                found = apply_link(output, member.link).double().numpy()
                predictions[place] = shape_outputs(found, member.output)
        start = 0
        for request in requests:
            rows = slice(start, start + request.rows)
            start += request.rows
            if self._refuse_late(request):
                continue
            answer: Response | TrainwrightError
            try:
                if pooled is None:
                    answer = answer_of(ensemble, request, {place: one[rows] for place, one in predictions.items()}, {})
                else:
                    # Copies, or the answer to one row would keep the whole batch in memory.
                    own = pooled if len(requests) == 1 else pooled[rows].copy()
                    answer = make_answer(ensemble, request, own, members={}, missing={})
            except TrainwrightError as error:
                answer = error
            self._end_request(request, answer)

    def _join_rows(self, requests: Sequence[Request]) -> Array:
        x = requests[0].x
        # torch warns of arrays that it may not write to, such as those of an HTTP body.
        if len(requests) == 1 and x.dtype == self._dtype and x.flags.writeable and x.flags.c_contiguous:
            return x
        with np.errstate(over="ignore"):  # infinite rows are refused by `check_outputs`, which names the row
            return np.concatenate([one.x for one in requests], dtype=self._dtype, casting="same_kind")

    def _compute_outputs(self, x: Array) -> "list[torch.Tensor]":
        """Return what the networks answer to rows x, computed in parts of a batch at most."""
        import torch

        # For this thread, once: to change them back would take longer than many batches.
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        rows = torch.from_numpy(x)
        parts = (rows,) if len(x) <= self._batch else rows.split(self._batch)
        found = []
        with torch.inference_mode():
            for place, member in enumerate(self._ensemble.members):
                try:
                    outputs = [self._loop.compute(place, part) for part in parts]
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"[:500]
                    raise RequestError(f"request: trial {member.trial} refused the rows ({why})") from error
                found.append(outputs[0] if len(outputs) == 1 else torch.cat(outputs))
        return found

    def _refuse_late(self, request: Request) -> bool:
        """Refuse a request whose deadline has passed, and say whether it has."""
        late = time.monotonic() > request.deadline
        if late:
            self._end_request(request, request.late_error("before the answer; allow more, or ask again"))
        return late

    def _end_request(self, request: Request, outcome: Response | TrainwrightError) -> None:
        """Answer or refuse a request, unless it was cancelled."""
        if request.future.done():
            return
        with self.gate:
            self.open -= 1
            self.counts["requests"] += 1
            self.counts["rows"] += request.rows
            self.counts["late"] += isinstance(outcome, DeadlinePassed)
        if isinstance(outcome, Response):
            request.future.set_result(outcome)
        else:
            request.future.set_exception(outcome)


def _weighted_probabilities(outputs: "Sequence[torch.Tensor]", shares: Array) -> Array:
    """Return the weighted mean [N, C] of the softmax of logits [N, C], in one pass over all members.

    It is what the rule "weighted" computes, in a tenth of the time for a few rows. A row of logits that are not finite
    gives NaN, so one sum over the result checks all members.
    """
    import torch

    probabilities = torch.stack(outputs).softmax(2, dtype=torch.float64).numpy()  # type: ignore[arg-type]  # a list
    return np.asarray((shares @ probabilities.reshape(len(shares), -1)).reshape(probabilities.shape[1:]))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that this thread runs, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
