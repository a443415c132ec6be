"""Routes HTTP requests to endpoints: the Open Inference Protocol, version 2, metrics, and a page to try it."""

import asyncio
import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from importlib import resources
from typing import Any

import trainwright
from trainwright.errors import DeadlinePassed, NotReady, Overloaded, RequestError, TrainwrightError
from trainwright.serve.http.connection import HttpExchange
from trainwright.serve.http.infer_endpoint import InferenceEndpoint, UnsupportedMedia
from trainwright.serve.http.infer_request import INPUT, Signature, TooLarge
from trainwright.serve.http.metrics import CONTENT_TYPE, PrometheusMetrics
from trainwright.serve.http.models import ModelRepository, NotFound, ServedModel, check_ready
from trainwright.serve.http.replies import json_of
from trainwright.serve.service import Limits

__all__ = ["ABOUT", "OPEN_PATHS", "Application", "read_page", "status_of"]

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")  # probes have no token
_STATUS: tuple[tuple[type[Exception], int], ...] = (  # the first that fits
    (NotFound, 404),
    (TooLarge, 413),
    (UnsupportedMedia, 415),
    (RequestError, 400),
    (NotReady, 503),
    (Overloaded, 429),
    (DeadlinePassed, 504),
    (TrainwrightError, 500),
)
_JSON = b"content-type: application/json\r\n"
ABOUT = {
    "name": "trainwright",
    "version": trainwright.__version__,
    "extensions": ["binary_tensor_data", "model_configuration", "model_repository", "statistics"],
}
Reply = tuple[bytes, bytes]
"""Body and headers of a reply with status 200."""


class Application:
    """Finds what each request asks for, and answers it; belongs to the thread of the event loop."""

    def __init__(self, models: ModelRepository, *, limits: Limits, page: str, token: bool) -> None:
        self.models, self._limits, self._token = models, limits, token
        self.metrics = PrometheusMetrics()
        self.inference = InferenceEndpoint(limits=limits, metrics=self.metrics, fail=self.fail)
        self._page = page.encode(), b"content-type: text/html; charset=utf-8\r\n"
        # Held here, or a task that nobody waits for may be collected.
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, exchange: HttpExchange) -> None:
        """Answer a request, now or later."""
        try:
            self._route(exchange)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered
            self.fail(exchange, error)

    def fail(self, exchange: HttpExchange, error: BaseException) -> None:
        """Answer an error: the first status that fits it, and its sentence; of a defect only that there is one."""
        status = status_of(error)
        text = str(error) if isinstance(error, TrainwrightError) else "the server has a defect; see its log"
        headers = {}
        if isinstance(error, Overloaded):
            headers = {"retry-after": f"{max(1, round(error.retry_after_seconds))}"}
        self.refuse(exchange, status, text, headers)

    def refuse(self, exchange: HttpExchange, status: int, text: str, headers: dict[str, str]) -> None:
        """Answer with a sentence."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._count(exchange, status)
        exchange.reply(status, json_of({"error": text}), _JSON + b"cache-control: no-store\r\n" + lines.encode())

    def _route(self, exchange: HttpExchange) -> None:
        match exchange.path.split("/")[1:]:
            case ["v2", "models", name, "infer"]:
                if self._allow(exchange, "POST"):
                    self.inference.infer(exchange, self.models.find(name))
            case ["v2", "models", name, "versions", version, "infer"]:
                if self._allow(exchange, "POST"):
                    self.inference.infer(exchange, self.models.find(name, version))
            case ["v2", "repository", "index"]:
                if self._allow(exchange, "POST"):
                    self._send(exchange, *_as_json(self.models.index()))
            case ["v2", "repository", "models", name, ("load" | "unload") as action]:
                if self._allow(exchange, "POST"):
                    task = asyncio.ensure_future(self._answer_change(exchange, name, action))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            case parts:
                found = self._find_document(parts)
                if found is None:
                    raise NotFound(
                        "path: unknown; allowed: the Open Inference Protocol's, /v2/ensembles/NAME, /metrics and /"
                    )
                if self._allow(exchange, "GET"):
                    self._send(exchange, *found())

    def _find_document(self, parts: list[str]) -> Callable[[], Reply] | None:
        """Return the function that makes the document at a path; None if there is none."""
        models = self.models
        match parts:
            case [""]:
                return lambda: self._page
            case ["metrics"]:
                return lambda: (self.metrics.text(list(models)), f"content-type: {CONTENT_TYPE}\r\n".encode())
            case ["openapi.json"]:
                return lambda: _as_json(_describe_api(models, token=self._token))
            case ["v2"]:
                return lambda: _as_json(ABOUT)
            case ["v2", "health", "live"]:
                return lambda: _as_json({"live": True})
            case ["v2", "health", "ready"]:
                return self._write_ready
            case ["v2", "models", "stats"]:
                return lambda: _as_json({"model_stats": [model.statistics() for model in models]})
            case ["v2", "ensembles", name]:
                return lambda: _as_json(models.find(name).describe_ensemble())
            case ["v2", "models", name, *rest]:
                version = None
                if rest[:1] == ["versions"] and len(rest) > 1:
                    version, rest = rest[1], rest[2:]
                if rest in ([], ["ready"], ["config"], ["stats"]):
                    return lambda: self._describe_model(name, version, "".join(rest))
        return None

    def _describe_model(self, name: str, version: str | None, what: str) -> Reply:
        model = self.models.find(name, version)
        if what == "ready":
            self.check_draining()
            check_ready(model)
            return _as_json({"ready": True})
        if what == "config":
            return _as_json(model.config(self._limits.rows))
        if what == "stats":
            return _as_json({"model_stats": [model.statistics()]})
        return _as_json({**model.metadata(), "versions": self.models.versions_of(name)})

    async def change_model(self, name: str, action: str) -> None:
        """Load or unload a model; NotReady once the server ends."""
        self.check_draining()
        if action == "load":
            await self.models.load(name)
        else:
            self.models.unload(name)

    async def _answer_change(self, exchange: HttpExchange, name: str, action: str) -> None:
        try:
            await self.change_model(name, action)
            self._send(exchange, *_as_json({}))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered
            self.fail(exchange, error)

    def check_ready(self) -> None:
        """Raise NotReady unless all models admit requests."""
        self.check_draining()
        self.models.ready()

    def check_draining(self) -> None:
        """Raise NotReady once the server ends."""
        if self.inference.draining:
            raise NotReady("the server is ending; ask another, or again later", retry_after_seconds=1.0)

    def _write_ready(self) -> Reply:
        self.check_ready()
        return _as_json({"ready": True})

    def _allow(self, exchange: HttpExchange, method: str) -> bool:
        """Refuse a request of another method, and say whether it is allowed."""
        if exchange.method == method or (method == "GET" and exchange.method == "HEAD"):
            return True
        self.refuse(exchange, 405, f"method: got {exchange.method}; allowed: {method} here", {"allow": method})
        return False

    def _send(self, exchange: HttpExchange, body: bytes, headers: bytes) -> None:
        self._count(exchange, 200)
        exchange.reply(200, body, headers)

    def _count(self, exchange: HttpExchange, status: int) -> None:
        kind = "infer" if exchange.target.partition(b"?")[0].endswith(b"/infer") else "other"
        self.metrics.requests[kind, status] += 1


def status_of(error: BaseException) -> int:
    """Return the status of HTTP that says what an error is."""
    return next((number for kind, number in _STATUS if isinstance(error, kind)), 500)


def _as_json(content: object) -> Reply:
    return json_of(content), _JSON


def _describe_api(models: Iterable[ServedModel], *, token: bool) -> dict[str, Any]:
    """Return `openapi.json` for the models that are served now; with `token` every request but a probe's needs one."""
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


def read_page() -> tuple[str, str]:
    """Return the page to try a model, and the policy under which it may run its own script and style alone."""
    # They are named by digest, so that no other ones run.
    page = resources.files("trainwright.serve.http").joinpath("page.html").read_text(encoding="utf-8")
    return page, _content_policy(page)


def _content_policy(page: str) -> str:
    """Return the policy under which the page may run its own script and style, and speak to this server alone."""
    allowed = [
        f"{kind}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
        for kind in ("script", "style")
        for content in re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
    ]
    rest = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return "; ".join(["default-src 'none'", *allowed, rest])
