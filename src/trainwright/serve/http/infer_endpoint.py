"""The inference endpoint: one request from its body to the reply, for any service."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pydantic_core
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response as HttpResponse

from trainwright.ensemble.metrics import Array
from trainwright.errors import NotReady, RequestError
from trainwright.serve.http.infer_request import INPUT, InferRequest, Signature, read_request
from trainwright.serve.http.metrics import PrometheusMetrics
from trainwright.serve.http.tensors import HEADER_LENGTH, encode_tensor
from trainwright.serve.service import Limits, Response, Service

__all__ = ["VERSION", "InferenceEndpoint", "json_of", "write_reply"]

VERSION = "1"  # of the one ensemble that is served
_DEGRADED = "X-Trainwright-Degraded"
_BINARY, _JSON = "application/octet-stream", "application/json"
_MOMENT_SECONDS = 0.02  # that an answer may take before its client is watched, which takes a task
_LARGE_BYTES = 2**20  # bodies from here on are parsed beside the event loop, so that others are heard meanwhile


def write_reply(
    answer: Response, request: InferRequest, *, name: str, threshold: float | None
) -> tuple[bytes, int | None]:
    """Return the body, and the length of its JSON part if tensors follow behind it."""
    outputs, behind = [], []
    for output, values in _list_outputs(answer, threshold):
        if request.outputs is None or output in request.outputs:
            binary = request.binary if request.outputs is None else request.outputs[output]
            tensor, content = encode_tensor(output, values, binary=binary)
            outputs.append(tensor)
            behind += content
    parameters: dict[str, Any] = {
        "degraded": answer.degraded,
        "members_used": list(answer.used),
        "members_missing": {str(trial): why for trial, why in answer.missing.items()},
        "weight_used": answer.weight,
        "ensemble": name,
    }
    if answer.uncertainty is not None:
        parameters["uncertainty_measure"] = answer.uncertainty.measure
    if request.ignored:
        parameters["parameters_ignored"] = list(request.ignored)
    reply: dict[str, Any] = {"model_name": name, "model_version": VERSION}
    if request.id is not None:
        reply["id"] = request.id
    head = json_of({**reply, "parameters": parameters, "outputs": outputs})
    return (b"".join([head, *behind]), len(head)) if behind else (head, None)


def json_of(content: object) -> bytes:
    """Return compact JSON; NaN and infinities become null, for JSON has none."""
    return pydantic_core.to_json(content, inf_nan_mode="null", fallback=_make_plain)


def _list_outputs(answer: Response, threshold: float | None) -> Iterator[tuple[str, Array]]:
    yield "prediction", answer.prediction
    doubt = answer.uncertainty
    if doubt is not None:
        yield "uncertainty_total", doubt.total
        yield "uncertainty_epistemic", doubt.epistemic
        if doubt.aleatoric is not None:
            yield "uncertainty_aleatoric", doubt.aleatoric
        if threshold is not None:
            yield "out_of_range", doubt.per_row().epistemic > threshold
    for trial, values in answer.members.items():
        yield f"member_{trial}", values


def _make_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if isinstance(value, np.generic) else str(value)


class InferenceEndpoint:
    """A service under a name, with limits; what its endpoints answer."""

    def __init__(self, service: Service, *, name: str, limits: Limits) -> None:
        self.service, self.name, self.limits = service, name, limits
        self.signature = Signature.of(service.ensemble)
        self.metrics = PrometheusMetrics(service.state)
        self.draining = False

    def check_model(self, model: str | None = None, version: str | None = None) -> None:
        """Refuse the name or version of anything else than what is served."""
        if model not in {None, self.name}:
            raise HTTPException(404, f"model: got {str(model)[:80]!r}; allowed: {self.name}")
        if version not in {None, VERSION}:
            raise HTTPException(404, f"version: got {str(version)[:80]!r}; allowed: {VERSION}")

    def ready(self) -> Mapping[str, Any]:
        """Say that requests are admitted, or raise NotReady."""
        if self.draining or not self.service.ready():
            raise NotReady("the service starts, ends, or has too few members left; ask again", retry_after_seconds=1.0)
        return {"ready": True}

    async def infer(self, request: Request) -> HttpResponse:
        """Return the reply to one inference request; whoever leaves before has the request cancelled."""
        if self.draining:
            raise NotReady("the server is ending; ask another, or again later", retry_after_seconds=5.0)
        length = _read_header_length(request)
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = bytearray()
                async for chunk in request.stream():
                    body += chunk
        except TimeoutError:
            raise HTTPException(408, f"body: did not come within {self.limits.body_seconds:g} s") from None
        except ClientDisconnect:
            return self._count_disconnected()
        # The time that a client takes to send is none of the server's.
        started = time.perf_counter()
        if len(body) < _LARGE_BYTES:
            parsed = read_request(body, length, self.signature, self.limits)
        else:
            parsed = await asyncio.to_thread(read_request, body, length, self.signature, self.limits)
        # From here on the service works; the client is watched only if that takes long.
        submitted = time.perf_counter()
        answer = await self._await_answer(parsed, request)
        if answer is None:
            return self._count_disconnected()
        answered = time.perf_counter()
        response = self._make_reply(answer, parsed)
        self.metrics.parse.observe(submitted - started)
        self.metrics.answer.observe(answered - submitted)
        self.metrics.reply.observe(time.perf_counter() - answered)
        self.metrics.counts["rows"] += len(parsed.x)
        self.metrics.request_rows.observe(len(parsed.x))
        return response

    def model(self) -> Mapping[str, Any]:
        """Return the metadata of the protocol; -1 stands for any size."""
        signature = self.signature
        shape = [-1] if signature.shape is None else [-1, *signature.shape]
        outputs = [
            {"name": name, "datatype": "BOOL" if name == "out_of_range" else "FP64", "shape": size}
            for name, size in signature.outputs.items()
        ]
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": "trainwright_ensemble",
            "inputs": [{"name": INPUT, "datatype": signature.datatype, "shape": shape}],
            "outputs": outputs,
        }

    def ensemble(self) -> Mapping[str, Any]:
        """Return who is in the ensemble, and how it is served now."""
        ensemble = self.service.ensemble
        return {
            "name": self.name,
            "output": ensemble.output,
            "rule": ensemble.rule.to_json(),
            "calibrated": ensemble.calibration is not None,
            "threshold": ensemble.threshold,
            "seconds_per_row": ensemble.cost_seconds,
            "bytes": ensemble.nbytes,
            "members": ensemble.table(),
            "ready": not self.draining and self.service.ready(),
            "state": dict(self.service.state()),
        }

    async def _await_answer(self, parsed: InferRequest, request: Request) -> Response | None:
        """Return the service's answer, or None if the client leaves while it is waited for longer than a moment."""
        future = asyncio.wrap_future(self.service.submit(parsed.x, parsed.options))
        gone: list[asyncio.Future[Any]] = []

        def watch() -> None:
            # After the body only a disconnection can come.
            gone.append(asyncio.ensure_future(request.receive()))
            gone[0].add_done_callback(lambda _: future.cancel())

        moment = asyncio.get_running_loop().call_later(_MOMENT_SECONDS, watch)
        try:
            return await future
        except asyncio.CancelledError:
            if gone and gone[0].done():
                return None
            raise
        finally:
            moment.cancel()
            if gone:
                gone[0].cancel()

    def _make_reply(self, answer: Response, parsed: InferRequest) -> HttpResponse:
        threshold = self.service.ensemble.threshold
        body, length = write_reply(answer, parsed, name=self.name, threshold=threshold)
        headers = {} if length is None else {HEADER_LENGTH: str(length)}
        if answer.degraded:
            self.metrics.counts["degraded"] += 1
            headers[_DEGRADED] = ",".join(str(trial) for trial in answer.missing)
        return HttpResponse(body, headers=headers, media_type=_JSON if length is None else _BINARY)

    def _count_disconnected(self) -> HttpResponse:
        self.metrics.counts["disconnected"] += 1
        # Nobody reads it.
        return HttpResponse(json_of({"error": "the client left"}), status_code=400)


def _read_header_length(request: Request) -> str | None:
    """Return the length of the JSON part; refuse a body that is something else than JSON and tensors.

    One without a type is what the protocol's own clients send: binary if the length is there, else JSON. Those types
    that a page of another site may send unasked are refused, beside the guard, which refuses such a page.
    """
    length = request.headers.get(HEADER_LENGTH)
    if "content-type" in request.headers:
        kind = request.headers["content-type"].partition(";")[0].strip().lower()
        if kind not in {_JSON, _BINARY}:
            raise HTTPException(415, f"Content-Type: got {kind[:80]!r}; allowed: {_JSON}, {_BINARY}, or none")
        if kind == _BINARY and length is None:
            raise RequestError(f"{HEADER_LENGTH}: is missing; allowed: the bytes of the JSON part of {_BINARY}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HTTPException(415, f"Content-Encoding: got {encoding[:80]!r}; allowed: none, or identity")
    return length
