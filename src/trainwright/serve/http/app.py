"""The endpoints: the Open Inference Protocol, version 2, the ensemble, metrics, and a page to try it."""

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from importlib import resources

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

import trainwright
from trainwright.errors import DeadlinePassed, NotReady, Overloaded, RequestError, TrainwrightError
from trainwright.serve.http.infer_endpoint import InferenceEndpoint, json_of
from trainwright.serve.http.infer_request import TooLarge
from trainwright.serve.http.metrics import CONTENT_TYPE

__all__ = ["OPEN_PATHS", "application"]

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")  # probes have no token
_STATUS: tuple[tuple[type[Exception], int], ...] = (  # the first that fits
    (TooLarge, 413),
    (RequestError, 400),
    (NotReady, 503),
    (Overloaded, 429),
    (DeadlinePassed, 504),
    (TrainwrightError, 500),
)
_WORDS = {
    "Not Found": (
        "path: there is nothing here; allowed: the Open Inference Protocol's, /v2/ensembles/NAME, /metrics and /"
    ),
    "Method Not Allowed": "method: is not allowed here; allowed: POST for inference, GET for all else",
}


def application(endpoint: InferenceEndpoint) -> Starlette:
    """Return the ASGI application of a service; `trainwright.serve.http.server` puts a guard in front of it."""
    # Its script and style are named by digest in the policy, so that no other ones run.
    page = resources.files("trainwright.serve.http").joinpath("page.html").read_text(encoding="utf-8")
    policy = {"Content-Security-Policy": _content_policy(page)}
    html = page.replace("{{name}}", endpoint.name)

    def reply(make: Callable[[], object]) -> Callable[[Request], Awaitable[Response]]:
        """Return the function of a route that answers with JSON."""

        async def respond(request: Request) -> Response:
            endpoint.check_model(**request.path_params)
            return Response(json_of(make()), media_type="application/json")

        return respond

    async def infer(request: Request) -> Response:
        endpoint.check_model(**request.path_params)
        return await endpoint.infer(request)

    async def metrics(_request: Request) -> Response:
        return Response(endpoint.metrics.text(), media_type=CONTENT_TYPE)

    async def try_it(_request: Request) -> Response:
        return HTMLResponse(html, headers=policy)

    about = {"name": "trainwright", "version": trainwright.__version__, "extensions": ["binary_tensor_data"]}
    models = [f"/v2/models/{{model}}{version}" for version in ("", "/versions/{version}")]
    # Routes are tried in order: what is asked most comes first.
    routes = [Route(f"{model}/infer", infer, methods=["POST"]) for model in models]
    routes += [
        Route(path, function)
        for path, function in (
            *((f"{model}/ready", reply(endpoint.ready)) for model in models),
            *((model, reply(endpoint.model)) for model in models),
            ("/v2", reply(lambda: about)),
            ("/v2/health/live", reply(lambda: {"live": True})),
            ("/v2/health/ready", reply(endpoint.ready)),
            ("/v2/ensembles/{model}", reply(endpoint.ensemble)),
            ("/metrics", metrics),
            ("/", try_it),
        )
    ]
    return Starlette(
        routes=routes, exception_handlers=dict.fromkeys((TrainwrightError, HTTPException, Exception), _reply_refusal)
    )


def _content_policy(page: str) -> str:
    """Return the policy under which the page may run its own script and style, and speak to this server alone."""
    allowed = [
        f"{kind}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
        for kind in ("script", "style")
        for content in re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
    ]
    rest = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return "; ".join(["default-src 'none'", *allowed, rest])


async def _reply_refusal(_request: Request, error: Exception) -> Response:
    """Answer an error: the first status that fits it, and its sentence; of a defect only that there is one."""
    headers: Mapping[str, str] = {}
    text = str(error)
    if isinstance(error, HTTPException):
        status, headers, text = error.status_code, error.headers or {}, _WORDS.get(error.detail, error.detail)
    else:
        status = next((number for kind, number in _STATUS if isinstance(error, kind)), 500)
        if not isinstance(error, TrainwrightError):
            text = "the server has a defect; its log tells more"
        if isinstance(error, Overloaded):
            headers = {"Retry-After": f"{max(1, round(error.retry_after_seconds))}"}
    return Response(json_of({"error": text}), status_code=status, headers=dict(headers), media_type="application/json")
