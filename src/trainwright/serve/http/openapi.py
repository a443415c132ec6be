"""The server's OpenAPI document, version 3.1: what its endpoints take and answer, for the models that it has now."""

import math
from collections.abc import Iterable
from typing import Any

import trainwright
from trainwright.serve.http.infer_request import INPUT, InferBody, Signature
from trainwright.serve.http.models import ServedModel

__all__ = ["describe_api"]

_MODEL, _VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
_OBJECT: dict[str, Any] = {"type": "object"}
_TENSORS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {"name": {"type": "string"}, "shape": {"type": "array", "items": {"type": "integer"}}},
    },
}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    "Metadata": {"type": "object", "required": ["name", "versions", "inputs"], "properties": {"inputs": _TENSORS}},
    "Inference": {
        "type": "object",
        "required": ["model_name", "model_version", "parameters", "outputs"],
        "properties": {"model_name": {"type": "string"}, "parameters": _OBJECT, "outputs": _TENSORS},
    },
    "Index": {"type": "array", "items": {"type": "object", "required": ["name", "version", "state"]}},
}
# Method, path, what it does, the schema of the answer or its media type, and the errors beside those of every request.
_OPERATIONS: tuple[tuple[str, str, str, str, tuple[int, ...]], ...] = (
    ("get", "/", "A page to try a model", "text/html", ()),
    ("get", "/metrics", "Counts and times, as Prometheus reads them", "text/plain", ()),
    ("get", "/openapi.json", "This document", "Object", ()),
    ("get", "/v2", "The server", "Object", ()),
    ("get", "/v2/health/live", "Whether it answers", "Object", ()),
    ("get", "/v2/health/ready", "Whether all models admit requests", "Object", (503,)),
    ("get", "/v2/models/stats", "Counts and times of all models", "Object", ()),
    ("get", "/v2/ensembles/{model}", "Members, weights and placement", "Object", (404,)),
    *(
        ("get", path + end, f"{what} of a model", kind, errors)
        for path in (_MODEL, _VERSION)
        for end, what, kind, errors in (
            ("", "Inputs and outputs", "Metadata", (404,)),
            ("/ready", "Readiness", "Object", (404, 503)),
            ("/config", "Configuration", "Object", (404,)),
            ("/stats", "Counts and times", "Object", (404,)),
        )
    ),
    *(
        ("post", f"{path}/infer", "Predict rows", "Inference", (404, 413, 415, 429, 503, 504))
        for path in (_MODEL, _VERSION)
    ),
    ("post", "/v2/repository/index", "All models, served or not", "Index", (413,)),
    ("post", "/v2/repository/models/{model}/load", "Load a model, or its changed versions", "Object", (404, 413, 503)),
    ("post", "/v2/repository/models/{model}/unload", "Take a model out of service", "Object", (404, 413, 503)),
)


def describe_api(models: Iterable[ServedModel], *, token: bool) -> dict[str, Any]:
    """Return the document for the models; with `token` every request but a probe's needs one."""
    served = list(models)
    # Examples instead of a list of all: which models there are changes while the server runs.
    parameters = {"model": {model.name for model in served}, "version": {model.version for model in served}}
    rows = {model.name: {"value": _one_row(model.signature)} for model in served if model.signature.shape is not None}
    body = InferBody.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**_SCHEMAS, "Object": _OBJECT, **body.pop("$defs"), "InferBody": body}
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, answer, errors in _OPERATIONS:
        operation: dict[str, Any] = {
            "summary": summary,
            "parameters": [
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string", "minLength": 1},
                    "examples": {value: {"value": value} for value in sorted(values)},
                }
                for name, values in parameters.items()
                if f"{{{name}}}" in path
            ],
            "responses": {"200": _answer_of(answer)} | {str(error): _answer_of("Error") for error in (400, *errors)},
        }
        if path.endswith("/infer"):
            content = {"application/json": {"schema": {"$ref": "#/components/schemas/InferBody"}, "examples": rows}}
            operation["requestBody"] = {"required": True, "content": content}
            # The reply is of this type where an output was asked for in binary.
            operation["responses"]["200"]["content"]["application/octet-stream"] = {"schema": {"format": "binary"}}
        if token and not path.startswith("/v2/health"):
            operation["responses"]["401"] = {"description": "The token is missing", "content": {"text/plain": {}}}
            operation["security"] = [{"token": []}]
        paths.setdefault(path, {})[method] = operation
    components: dict[str, Any] = {"schemas": schemas}
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    about = {"title": "Trainwright: Open Inference Protocol, version 2", "version": trainwright.__version__}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": components}


def _one_row(signature: Signature) -> dict[str, Any]:
    """Return a request of one row of zeros."""
    shape = [1, *(signature.shape or ())]
    zero = False if signature.datatype == "BOOL" else 0
    tensor = {"name": INPUT, "datatype": signature.datatype, "shape": shape, "data": [zero] * math.prod(shape)}
    return {"inputs": [tensor]}


def _answer_of(kind: str) -> dict[str, Any]:
    if "/" in kind:
        return {"description": "Text", "content": {kind: {"schema": {"type": "string"}}}}
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind}"}}}
    return {"description": "A sentence that says why" if kind == "Error" else "The answer", "content": content}
