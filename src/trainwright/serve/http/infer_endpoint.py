"""The inference endpoint: one request from its body to the reply, without a task, for any service."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

from trainwright.errors import NotReady, RequestError
from trainwright.serve.http.connection import HttpExchange
from trainwright.serve.http.infer_request import InferRequest, read_request
from trainwright.serve.http.metrics import PrometheusMetrics
from trainwright.serve.http.models import ServedModel
from trainwright.serve.http.replies import compress_reply, decompress_body, write_reply
from trainwright.serve.http.tensors import HEADER_LENGTH
from trainwright.serve.service import Limits, Response

__all__ = ["InferenceEndpoint", "UnsupportedMedia"]

_BINARY, _JSON = "application/octet-stream", "application/json"


class UnsupportedMedia(RequestError):
    """A body of a type or encoding that is not read; status 415."""


class InferenceEndpoint:
    """Answers inference requests; `fail(exchange, error)` says what became of those that are not answered."""

    def __init__(
        self, *, limits: Limits, metrics: PrometheusMetrics, fail: Callable[[HttpExchange, BaseException], None]
    ) -> None:
        self._limits, self._metrics, self._fail = limits, metrics, fail
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.draining = False

    def infer(self, exchange: HttpExchange, model: ServedModel) -> None:
        """Begin to answer a request; whoever leaves before the reply has the request cancelled."""
        if self.draining:
            raise NotReady("the server is ending; ask another, or again later", retry_after_seconds=5.0)
        started = time.perf_counter()
        length, encoding = _read_headers(exchange)
        body = exchange.body
        if encoding is not None:
            body = decompress_body(body, encoding, self._limits.body_bytes)
        request = read_request(body, length, model.signature, self._limits)
        submitted = time.perf_counter()
        future = model.service.submit(request.x, request.options)
        # From here on the model stays until its reply, even if another takes its name.
        model.leases += 1
        exchange.abandoned = future.cancel

        def done(future: "Future[Response]") -> None:
            if threading.get_ident() == self._thread:
                finish(future)
            else:
                self._loop.call_soon_threadsafe(finish, future)

        def finish(future: "Future[Response]") -> None:
            model.leases -= 1
            # Else the exchange and the future would hold each other until the garbage collector stops all requests.
            exchange.abandoned = None
            answered = time.perf_counter()
            try:
                self._send_reply(exchange, model, request, future.result())
            except CancelledError:
                self._metrics.counts["disconnected"] += 1
            except Exception as error:  # noqa: BLE001 - whatever a service raises is answered, a defect too
                model.seconds["fail"].observe(answered - started)
                self._fail(exchange, error)
            else:
                ended = time.perf_counter()
                model.count_answered(len(request.x), submitted - started, answered - submitted, ended - answered)

        future.add_done_callback(done)

    def _send_reply(self, exchange: HttpExchange, model: ServedModel, request: InferRequest, answer: Response) -> None:
        body, headers = write_reply(
            answer,
            request,
            name=model.name,
            version=model.version,
            threshold=model.service.ensemble.threshold,
        )
        if accepted := exchange.header(b"accept-encoding"):
            body, headers = compress_reply(body, headers, accepted)
        metrics = self._metrics
        metrics.counts["degraded"] += bool(answer.missing)
        metrics.counts["rows"] += len(request.x)
        metrics.request_rows.observe(len(request.x))
        metrics.requests["infer", 200] += 1
        exchange.reply(200, body, headers)


def _read_headers(exchange: HttpExchange) -> tuple[str | None, str | None]:
    """Return the length of the JSON part, and the encoding; refuse a body that is something else than JSON and tensors.

    One without a type is what the protocol's own clients send: binary if the length is there, else JSON. Those types
    that a page of another site may send unasked are refused, beside the guard, which refuses such a page.
    """
    length = kind = encoding = None
    for name, value in exchange.headers:
        if name == b"content-type":
            kind = value.decode("latin-1").partition(";")[0].strip().lower()
        elif name == b"inference-header-content-length":
            length = value.decode("latin-1")
        elif name == b"content-encoding":
            encoding = value.decode("latin-1").strip().lower()
    if kind is not None and kind != _JSON:
        if kind != _BINARY:
            raise UnsupportedMedia(f"Content-Type: got {kind[:80]!r}; allowed: {_JSON}, {_BINARY}, or none")
        if length is None:
            raise RequestError(f"{HEADER_LENGTH}: is missing; allowed: the bytes of the JSON part of {_BINARY}")
    if encoding not in {None, "identity", "gzip", "deflate"}:
        raise UnsupportedMedia(f"Content-Encoding: got {encoding[:80]!r}; allowed: gzip, deflate, identity, or none")
    return length, None if encoding == "identity" else encoding
