"""The endpoints: the Open Inference Protocol, version 2, the ensemble, metrics, and a page to try it."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response

import trainwright
from trainwright.errors import DeadlinePassed, NotReady, Overloaded, RequestError, TrainwrightError
from trainwright.serve.http.infer_endpoint import InferenceEndpoint, Refused
from trainwright.serve.http.infer_reply import json_of
from trainwright.serve.http.infer_request import InferBody
from trainwright.serve.http.limits import TooLarge
from trainwright.serve.http.metrics import CONTENT_TYPE
from trainwright.serve.http.tensors import HEADER_LENGTH

__all__ = ["OPEN_PATHS", "application"]

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")  # probes have no token
_INFER = {"/v2/models/{model}/infer": ("model",), "/v2/models/{model}/versions/{version}/infer": ("model", "version")}
_STATUS: tuple[tuple[type[Exception], int], ...] = (  # the first that fits
    (TooLarge, 413),
    (RequestError, 400),
    (NotReady, 503),
    (Overloaded, 429),
    (DeadlinePassed, 504),
    (TrainwrightError, 500),
)


_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_ERROR_WORDS = {
    400: "A field that does not fit: which, what it holds, what is allowed.",
    401: "A token is needed.",
    403: "A page of another origin asked.",
    404: "Another ensemble or version is served here.",
    408: "The body did not come in time.",
    413: "Too many bytes or rows.",
    415: "Another content type or encoding.",
    429: "The queue is full; ask again after Retry-After.",
    503: "Not ready, ending, or too few members; ask again after Retry-After.",
    504: "The deadline passed before enough members had answered.",
}


def application(endpoint: InferenceEndpoint) -> FastAPI:
    """Return the ASGI application of a service; `trainwright.serve.http.server` puts a guard in endpoint of it."""
    app = FastAPI(
        title=f"Trainwright: {endpoint.name}",
        version=trainwright.__version__,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    for kind in (TrainwrightError, Refused, HTTPException, Exception):
        app.add_exception_handler(kind, _reply_refusal)
    _add_inference(app, endpoint)
    _add_protocol(app, endpoint)
    _add_extras(app, endpoint)
    return app


def _add_inference(app: FastAPI, endpoint: InferenceEndpoint) -> None:
    """Add what is asked most: first, for routes are tried in order, and with names as the path has them."""
    refusals = _error_responses(*_ERROR_WORDS)

    async def infer(request: Request) -> Response:
        """Predict: rows in, the combined prediction out, with members and uncertainty if asked for."""
        endpoint.check_model(**request.path_params)
        return await endpoint.infer(request)

    # Starlette's routes answer: FastAPI's, which describe, would solve the dependencies of every request anew.
    for path, names in _INFER.items():
        app.add_route(path, infer, methods=["POST"], include_in_schema=False)
        app.post(path, openapi_extra=_infer_schema(names), responses=refusals)(infer)


def _add_protocol(app: FastAPI, endpoint: InferenceEndpoint) -> None:
    @app.get("/v2")
    async def server() -> Response:
        """Return name, version and extensions of the server."""
        return _reply_json(
            {"name": "trainwright", "version": trainwright.__version__, "extensions": ["binary_tensor_data"]}
        )

    @app.get("/v2/health/live")
    async def live() -> Response:
        """Say that the server lives."""
        return _reply_json({"live": True})

    @app.get("/v2/health/ready", responses=_error_responses(503))
    async def ready() -> Response:
        """Say whether requests are admitted now."""
        return _reply_ready(endpoint)

    unknown = _error_responses(401, 404)

    @app.get("/v2/models/{model}", responses=unknown)
    @app.get("/v2/models/{model}/versions/{version}", responses=unknown)
    async def metadata(model: str, version: str | None = None) -> Response:
        """Return inputs and outputs of the ensemble."""
        endpoint.check_model(model, version)
        return _reply_json(endpoint.model())

    @app.get("/v2/models/{model}/ready", responses=_error_responses(401, 404, 503))
    @app.get("/v2/models/{model}/versions/{version}/ready", responses=_error_responses(401, 404, 503))
    async def model_ready(model: str, version: str | None = None) -> Response:
        """Say whether requests to the ensemble are admitted now."""
        endpoint.check_model(model, version)
        return _reply_ready(endpoint)


def _add_extras(app: FastAPI, endpoint: InferenceEndpoint) -> None:
    @app.get("/v2/ensembles/{name}", responses=_error_responses(401, 404))
    async def ensemble(name: str) -> Response:
        """Return members, weights and rule of the ensemble, and how it is served now."""
        endpoint.check_model(name)
        return _reply_json(endpoint.ensemble())

    @app.get("/metrics", responses=_error_responses(401), response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return counters, histograms and gauges for Prometheus."""
        return Response(endpoint.metrics.text(), media_type=CONTENT_TYPE)

    page = resources.files("trainwright.serve.http").joinpath("page.html").read_text(encoding="utf-8")

    policy = {"Content-Security-Policy": _content_policy(page)}

    @app.get("/", include_in_schema=False)
    async def try_it() -> Response:
        return HTMLResponse(page.replace("{{name}}", endpoint.name), headers=policy)


def _error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the statuses mean, each with its JSON object, for the OpenAPI description."""
    return {
        status: {"description": _ERROR_WORDS[status], "content": {"application/json": {"schema": _ERROR}}}
        for status in statuses
    }


def _infer_schema(names: Sequence[str]) -> dict[str, Any]:
    """Return what an inference request is, to a path with these names in it, for the OpenAPI description."""
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    length = {
        "name": HEADER_LENGTH,
        "in": "header",
        "required": False,
        "description": "Bytes of the JSON part, if binary tensors follow it.",
        "schema": {"type": "integer", "minimum": 0},
    }
    schema = InferBody.model_json_schema()
    definitions = schema.pop("$defs")
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    body = {"application/json": {"schema": _inline_references(schema, definitions)}, **binary}
    return {
        "parameters": [*parameters, length],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The answer.", "content": binary}},
    }


def _inline_references(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema without references, whose names would mean something else within the whole description."""
    if isinstance(schema, list):
        return [_inline_references(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline_references(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inline_references(one, definitions) for name, one in schema.items()}


def _content_policy(page: str) -> str:
    """Return the policy under which the page may run its own script and style, and speak to this server alone."""
    allowed = [
        f"{kind}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
        for kind in ("script", "style")
        for content in re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
    ]
    rest = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return "; ".join(["default-src 'none'", *allowed, rest])


def _reply_ready(endpoint: InferenceEndpoint) -> Response:
    if not endpoint.ready():
        raise NotReady("the service starts, ends, or has too few members left; ask again", retry_after_seconds=1.0)
    return _reply_json({"ready": True})


async def _reply_refusal(_request: Request, error: Exception) -> Response:
    """Answer an error: the first status that fits it, and its sentence; of a defect only that there is one."""
    headers: Mapping[str, str] = {}
    text = str(error)
    if isinstance(error, Refused):
        status = error.status
    elif isinstance(error, HTTPException):
        status, headers, text = error.status_code, error.headers or {}, _WORDS.get(error.status_code, error.detail)
    else:
        status = next((number for kind, number in _STATUS if isinstance(error, kind)), 500)
        if not isinstance(error, TrainwrightError):
            text = "the server has a defect; its log tells more"
        if isinstance(error, Overloaded):
            headers = {"Retry-After": f"{max(1, round(error.retry_after_seconds))}"}
    return Response(json_of({"error": text}), status_code=status, headers=dict(headers), media_type="application/json")


_WORDS = {
    404: "path: there is nothing here; allowed: what /openapi.json lists",
    405: "method: is not allowed here; /openapi.json lists what is",
}


def _reply_json(content: Mapping[str, Any] | Sequence[Any]) -> Response:
    return Response(json_of(content), media_type="application/json")
