"""A thread that combines large responses, so that sums over many rows do not keep the dispatcher from the workers."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainwright.ensemble import Ensemble
from trainwright.ensemble.metrics import Array
from trainwright.errors import ServeError, TrainwrightError
from trainwright.serve.runtime.batching import Request
from trainwright.serve.runtime.responses import answer_of

__all__ = ["Combiner", "Finished"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A request for which all has come that counts."""

    request: Request
    predictions: Mapping[int, Array]  # per member; they may lie in shared memory
    missing: Mapping[int, str]
    refusal: TrainwrightError | None  # what is said instead of an answer


class Combiner(threading.Thread):
    """Answers what is put, in order, until `stop`."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__(name="trainwright-combine", daemon=True)
        self._ensemble = ensemble
        self._queue: queue.SimpleQueue[tuple[Finished, Callable[[], None]] | None] = queue.SimpleQueue()

    def put(self, finished: Finished, release: Callable[[], None]) -> None:
        """Append a request; `release` is called when its predictions have been read."""
        self._queue.put((finished, release))

    def stop(self) -> None:
        """End after what was put."""
        if self.is_alive():
            self._queue.put(None)
            self.join()

    def run(self) -> None:
        """Answer until stopped."""
        while (given := self._queue.get()) is not None:
            finished, release = given
            self.answer(finished)
            release()

    def answer(self, finished: Finished) -> None:
        """Answer a request in the calling thread."""
        request = finished.request
        if not request.future.set_running_or_notify_cancel():
            return
        if finished.refusal is not None:
            request.future.set_exception(finished.refusal)
            return
        begun = time.monotonic()
        trace = {}
        if request.options.trace:
            trial = [member.trial for member in self._ensemble.members]
            trace = {
                "queue_ms": 1e3 * (request.begun - request.admitted),
                "predict_ms": {trial[member]: 1e3 * one for member, one in request.seconds.items()},
                "total_ms": 1e3 * (begun - request.admitted),
            }
        try:
            answer = answer_of(self._ensemble, request, finished.predictions, finished.missing, trace)
        except TrainwrightError as error:
            request.future.set_exception(error)
        except Exception as error:  # noqa: BLE001 - one request's trouble must not end the thread that answers all
            request.future.set_exception(ServeError(f"request: cannot be combined ({type(error).__name__}: {error})"))
        else:
            request.future.set_result(answer)
