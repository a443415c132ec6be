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
from trainwright.serve.http.front import InferenceEndpoint, Refused
from trainwright.serve.http.infer_reply import json_of
from trainwright.serve.http.limits import TooLarge
from trainwright.serve.http.metrics import CONTENT_TYPE
from trainwright.serve.http.model_metadata import repository
from trainwright.serve.http.openapi_schema import error_responses, infer_schema

__all__ = ["OPEN_PATHS", "application"]

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")  # probes have no token
_INFER, _INFER_VERSION = "/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"
_STATUS: tuple[tuple[type[Exception], int], ...] = (  # the first that fits
    (TooLarge, 413),
    (RequestError, 400),
    (NotReady, 503),
    (Overloaded, 429),
    (DeadlinePassed, 504),
    (TrainwrightError, 500),
)


def application(front: InferenceEndpoint) -> FastAPI:
    """Return the ASGI application of a service; `trainwright.serve.http.server` puts a guard in front of it."""
    app = FastAPI(
        title=f"Trainwright: {front.name}",
        version=trainwright.__version__,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    for kind in (TrainwrightError, Refused, HTTPException, Exception):
        app.add_exception_handler(kind, _reply_refusal)
    _add_inference(app, front)
    _add_protocol(app, front)
    _add_extras(app, front)
    return app


def _add_inference(app: FastAPI, front: InferenceEndpoint) -> None:
    """Add what is asked most: first, for routes are tried in order, and with names as the path has them."""
    refusals = error_responses(400, 401, 403, 404, 408, 413, 415, 429, 503, 504)

    async def infer(request: Request) -> Response:
        """Predict: rows in, the combined prediction out, with members and uncertainty if asked for."""
        front.known(**request.path_params)
        return await front.infer(request)

    # Starlette's routes answer: FastAPI's, which describe, would solve the dependencies of every request anew.
    for path, schema in ((_INFER, infer_schema("model")), (_INFER_VERSION, infer_schema("model", "version"))):
        app.add_route(path, infer, methods=["POST"], include_in_schema=False)
        app.post(path, openapi_extra=schema, responses=refusals)(infer)


def _add_protocol(app: FastAPI, front: InferenceEndpoint) -> None:
    @app.get("/v2")
    async def server() -> Response:
        """Return name, version and extensions of the server."""
        extensions = ["binary_tensor_data", "model_configuration", "statistics"]
        return _reply_json({"name": "trainwright", "version": trainwright.__version__, "extensions": extensions})

    @app.get("/v2/health/live")
    async def live() -> Response:
        """Say that the server lives."""
        return _reply_json({"live": True})

    @app.get("/v2/health/ready", responses=error_responses(503))
    async def ready() -> Response:
        """Say whether requests are admitted now."""
        return _reply_ready(front)

    unknown = error_responses(401, 404)

    @app.get("/v2/models/stats", responses=error_responses(401))
    @app.get("/v2/models/{model}/stats", responses=unknown)
    @app.get("/v2/models/{model}/versions/{version}/stats", responses=unknown)
    async def stats(model: str | None = None, version: str | None = None) -> Response:
        """Return counts and nanoseconds of the inference requests so far."""
        front.known(front.name if model is None else model, version)
        return _reply_json(front.statistics())

    @app.get("/v2/models/{model}/config", responses=unknown)
    @app.get("/v2/models/{model}/versions/{version}/config", responses=unknown)
    async def configuration(model: str, version: str | None = None) -> Response:
        """Return the ensemble's model configuration."""
        front.known(model, version)
        return _reply_json(front.config())

    @app.post("/v2/repository/index", responses=error_responses(401))
    async def index() -> Response:
        """Return the models there are, which is one."""
        return _reply_json(repository(front.name, ready=front.ready()))

    @app.get("/v2/models/{model}", responses=unknown)
    @app.get("/v2/models/{model}/versions/{version}", responses=unknown)
    async def metadata(model: str, version: str | None = None) -> Response:
        """Return inputs and outputs of the ensemble."""
        front.known(model, version)
        return _reply_json(front.model())

    @app.get("/v2/models/{model}/ready", responses=error_responses(401, 404, 503))
    @app.get("/v2/models/{model}/versions/{version}/ready", responses=error_responses(401, 404, 503))
    async def model_ready(model: str, version: str | None = None) -> Response:
        """Say whether requests to the ensemble are admitted now."""
        front.known(model, version)
        return _reply_ready(front)


def _add_extras(app: FastAPI, front: InferenceEndpoint) -> None:
    @app.get("/v2/ensembles/{name}", responses=error_responses(401, 404))
    async def ensemble(name: str) -> Response:
        """Return members, weights and rule of the ensemble, and how it is served now."""
        front.known(name)
        return _reply_json(front.ensemble())

    @app.get("/metrics", responses=error_responses(401), response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return counters, histograms and gauges for Prometheus."""
        return Response(front.metrics.text(), media_type=CONTENT_TYPE)

    page = resources.files("trainwright.serve.http").joinpath("page.html").read_text(encoding="utf-8")

    policy = {"Content-Security-Policy": _content_policy(page)}

    @app.get("/", include_in_schema=False)
    async def try_it() -> Response:
        return HTMLResponse(page.replace("{{name}}", front.name), headers=policy)


def _content_policy(page: str) -> str:
    """Return the policy under which the page may run its own script and style, and speak to this server alone."""
    allowed = [
        f"{kind}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
        for kind in ("script", "style")
        for content in re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
    ]
    rest = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return "; ".join(["default-src 'none'", *allowed, rest])


def _reply_ready(front: InferenceEndpoint) -> Response:
    if not front.ready():
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
