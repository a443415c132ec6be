"""An ensemble served from this process: threads in place of worker processes, for tests, notebooks and small models."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Self

from trainwright.ensemble import Ensemble, Member
from trainwright.ensemble.library.networks import predict_member
from trainwright.ensemble.metrics import Array
from trainwright.errors import DeadlinePassed, EnsembleError, NotReady, Overloaded, RequestError, ServeConfigError
from trainwright.serve.answers import answer_of
from trainwright.serve.batching import Request, request_of
from trainwright.serve.service import Answer, Options

if TYPE_CHECKING:
    import torch

__all__ = ["Inline", "output_of"]

_BATCH_ROWS = 512


class Inline:
    """A `Service` without worker processes: each request is one call of every member, in order, on a thread.

    Requests are not put together into batches and a member that crashes the interpreter takes the service with it:
    `Deployment` is for production. `queue_rows` bounds the rows that wait or are computed.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        threads: int = 1,
        queue_rows: int = 8192,
        deadline_ms: float | None = None,
        device: str = "cpu",
    ) -> None:
        for name, value in (("threads", threads), ("queue_rows", queue_rows)):
            if value < 1:
                raise ServeConfigError(f"Inline, {name}: got {value}; allowed: an integer >= 1")
        if deadline_ms is not None and not deadline_ms > 0:
            raise ServeConfigError(f"Inline, deadline_ms: got {deadline_ms}; allowed: a number > 0, or None")
        self._ensemble = ensemble
        self._settings = (deadline_ms, device, queue_rows)
        self._lock = threading.Lock()
        self._rows = 0
        self._open: set[Future[Answer]] = set()
        self._ended = False
        self._networks = ensemble.networks  # built here: not in the first request
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="trainwright-inline")

    @property
    def ensemble(self) -> Ensemble:
        """The ensemble that is served."""
        return self._ensemble

    def submit(self, x: Array, options: Options) -> "Future[Answer]":
        """Admit the rows x [N, ...], or raise Overloaded or NotReady at once; the future may raise DeadlinePassed."""
        deadline_ms, _, queue_rows = self._settings
        request = request_of(x, options, dict(enumerate(self._ensemble.weights)), deadline_ms)
        with self._lock:
            if self._ended:
                raise NotReady("the service is ending; ask another, or again later", retry_after_seconds=5.0)
            if self._rows + len(x) > queue_rows:
                raise Overloaded(
                    f"queue: holds {self._rows} rows, the request has {len(x)}; allowed: {queue_rows}; ask again",
                    retry_after_seconds=1.0,
                )
            self._rows += len(x)
            future = self._pool.submit(self._answer, request)
            self._open.add(future)
        future.add_done_callback(self._leave(len(x)))
        return future

    def ready(self) -> bool:
        """Say whether requests are admitted now."""
        return not self._ended

    def state(self) -> Mapping[str, Any]:
        """Return the rows and requests that are waited for, and the members."""
        with self._lock:
            return {
                "engine": "inline",
                "queue_rows": self._rows,
                "requests": len(self._open),
                "members_alive": len(self._ensemble.members),
            }

    def drain(self, seconds: float) -> None:
        """Refuse new requests and finish the admitted ones for at most so long; those that wait then are cancelled."""
        with self._lock:
            self._ended = True
            waiting = set(self._open)
        wait(waiting, timeout=seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.drain(0.0)

    def _leave(self, rows: int) -> Callable[["Future[Answer]"], None]:
        def left(future: "Future[Answer]") -> None:
            with self._lock:
                self._rows -= rows
                self._open.discard(future)

        return left

    def _answer(self, request: Request) -> Answer:
        begun = time.monotonic()
        outputs, missing, members = {}, {}, []
        for place in request.members:
            member, before = self._ensemble.members[place], time.monotonic()
            if before > request.deadline:
                missing[place] = "the deadline passed"
                continue
            outputs[place] = output_of(
                self._networks[place], member, request.x, batch_rows=_BATCH_ROWS, device=self._settings[1]
            )
            times = {"start_ms": _ms(request, before), "end_ms": _ms(request, time.monotonic())}
            members.append({"trial": member.trial, **times})
        if not outputs:
            raise DeadlinePassed("deadline_ms: passed before a member answered; allow more, or ask again")
        trace = {"queue_ms": _ms(request, begun), "members": members} if request.options.trace else {}
        return answer_of(self._ensemble, request, outputs, missing, trace)


def output_of(network: "torch.nn.Module", member: Member, x: Array, *, batch_rows: int, device: str) -> Array:
    """Return a member's predictions of rows x; RequestError for rows that its network cannot take."""
    try:
        return predict_member(network, x, member, batch_rows=batch_rows, device=device)
    except EnsembleError as error:
        raise RequestError(str(error).replace("Ensemble.predict", "input")) from error
    except (IndexError, RuntimeError, TypeError, ValueError) as error:  # what networks say to rows they cannot take
        sentence = str(error).strip().split("\n")[0]
        raise RequestError(
            f"input: got shape {list(x.shape)} of {x.dtype}, which trial {member.trial} cannot take: {sentence}"
        ) from error


def _ms(request: Request, moment: float) -> float:
    return 1e3 * (moment - request.admitted)
