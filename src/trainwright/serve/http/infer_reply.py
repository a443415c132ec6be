"""The reply to an inference request: the outputs asked for, as JSON or binary, and whose answer it is."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pydantic_core

from trainwright.ensemble.metrics import Array
from trainwright.serve.http.infer_request import InferRequest
from trainwright.serve.http.tensors import encode_tensor
from trainwright.serve.service import Response

__all__ = ["VERSION", "json_of", "write_reply"]

VERSION = "1"  # of the one ensemble that is served


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
    if answer.trace:
        parameters["trace"] = answer.trace
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
