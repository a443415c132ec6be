"""Replies of inference: the protocol's JSON, with tensors in it or as bytes behind it, compressed if that is asked."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pydantic_core

from trainwright.ensemble.metrics import Array
from trainwright.errors import RequestError
from trainwright.serve.http.infer_request import INTERVAL, SET, InferRequest, TooLarge
from trainwright.serve.http.tensors import HEADER_LENGTH, encode_tensor
from trainwright.serve.service import Response

__all__ = ["compress_reply", "decompress_body", "describe_reply", "json_of", "write_reply"]

_DEGRADED = "X-Trainwright-Degraded"
_BINARY, _JSON = b"content-type: application/octet-stream\r\n", b"content-type: application/json\r\n"
_LEAST_COMPRESSED = 256  # bytes: smaller replies do not become shorter
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def describe_reply(
    answer: Response, request: InferRequest, *, name: str, version: str, threshold: float | None
) -> tuple[dict[str, Any], list[bytes]]:
    """Return the JSON part of the reply to a request, and the tensors that are bytes behind it."""
    outputs, behind = [], []
    for output, values in _list_outputs(answer, threshold):
        if request.outputs is None or output in request.outputs:
            binary = request.binary if request.outputs is None else request.outputs[output]
            tensor, content = encode_tensor(output, values, binary=binary)
            outputs.append(tensor)
            behind += content
    parameters: dict[str, Any] = {
        "degraded": answer.degraded,
        "members_used": answer.used,
        "members_missing": {str(trial): why for trial, why in answer.missing.items()},
        "weight_used": answer.weight,
        "ensemble": name,
    }
    if answer.uncertainty is not None:
        parameters["uncertainty_measure"] = answer.uncertainty.measure
    if request.ignored:
        parameters["parameters_ignored"] = request.ignored
    reply: dict[str, Any] = {"model_name": name, "model_version": version}
    if request.id is not None:
        reply["id"] = request.id
    return {**reply, "parameters": parameters, "outputs": outputs}, behind


def write_reply(
    answer: Response, request: InferRequest, *, name: str, version: str, threshold: float | None
) -> tuple[bytes, bytes]:
    """Return body and headers of the reply to a request."""
    content, behind = describe_reply(answer, request, name=name, version=version, threshold=threshold)
    head = json_of(content)
    degraded = ""
    if answer.missing:
        degraded = f"{_DEGRADED}: {','.join(map(str, answer.missing))}\r\n"
    if not behind:
        return head, _JSON + degraded.encode()
    return b"".join([head, *behind]), _BINARY + f"{HEADER_LENGTH}: {len(head)}\r\n{degraded}".encode()


def json_of(content: object) -> bytes:
    """Return compact JSON; NaN and infinities become null, for JSON has none."""
    return pydantic_core.to_json(content, inf_nan_mode="null", fallback=_make_plain)


def compress_reply(body: bytes, headers: bytes, accepted: str) -> tuple[bytes, bytes]:
    """Return a reply compressed by the first of gzip and deflate that the client accepts; small ones as they are."""
    wanted = [part for part in accepted.lower().split(",") if not part.rstrip().endswith("q=0")]
    named = {part.partition(";")[0].strip() for part in wanted}
    kind = next((one for one in _WINDOWS if one in named), None)
    if kind is None or len(body) < _LEAST_COMPRESSED:
        return body, headers
    # The least effort: numbers are hardly smaller with more.
    packer = zlib.compressobj(1, wbits=_WINDOWS[kind])
    return packer.compress(body) + packer.flush(), headers + f"content-encoding: {kind}\r\n".encode()


def decompress_body(body: bytes, encoding: str, most: int) -> bytes:
    """Return a body as it was before compression; raises RequestError, TooLarge beyond `most` bytes."""
    unpacker = zlib.decompressobj(_WINDOWS[encoding])
    try:
        # With a limit, so that what would become too large never is in memory.
        found = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise RequestError(f"body: is no valid {encoding} ({error}); allowed: what Content-Encoding names") from None
    if len(found) > most:
        raise TooLarge(f"body: is too large once inflated; allowed: up to {most} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise RequestError(f"body: its {encoding} is cut, or something follows it; allowed: one whole stream")
    return found


def _list_outputs(answer: Response, threshold: float | None) -> Iterator[tuple[str, Array]]:
    yield "prediction", answer.prediction
    if answer.conformal is not None:
        yield (SET if answer.conformal.ndim == 2 else INTERVAL), answer.conformal
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
