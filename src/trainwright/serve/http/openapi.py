"""The server's OpenAPI document, version 3.1: `openapi.json`, with the models that it has now as examples."""

import json
import math
from collections.abc import Iterable
from importlib import resources
from typing import Any

import trainwright
from trainwright.serve.http.infer_request import INPUT, Signature
from trainwright.serve.http.models import ServedModel

__all__ = ["describe_api"]


def describe_api(models: Iterable[ServedModel], *, token: bool) -> dict[str, Any]:
    """Return the document for the models; with `token` every request but a probe's needs one."""
    file = resources.files("trainwright.serve.http").joinpath("openapi.json")
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    document["info"]["version"] = trainwright.__version__
    if token:
        document["security"] = [{"token": []}]
    # Examples instead of a list of all: which models there are changes while the server runs.
    served, parts = list(models), document["components"]
    for name in ("model", "version"):
        known = {model.name if name == "model" else model.version for model in served}
        parts["parameters"][name]["examples"] = {value: {"value": value} for value in sorted(known)}
    parts["requestBodies"]["Infer"]["content"]["application/json"]["examples"] = {
        model.name: {"value": _one_row(model.signature)} for model in served if model.signature.shape is not None
    }
    return document


def _one_row(signature: Signature) -> dict[str, Any]:
    """Return a request of one row of zeros."""
    shape = [1, *(signature.shape or ())]
    zero = False if signature.datatype == "BOOL" else 0
    tensor = {"name": INPUT, "datatype": signature.datatype, "shape": shape, "data": [zero] * math.prod(shape)}
    return {"inputs": [tensor]}
