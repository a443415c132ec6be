"""A service behind an address: bound, guarded, run beside the program or until a signal, and drained."""

import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Self

from trainwright.errors import MissingExtra, ServeConfigError, ServeError
from trainwright.http_security import Guard, bind, is_loopback
from trainwright.serve.service import Limits, Service

if TYPE_CHECKING:
    import uvicorn

    from trainwright.serve.http.infer_endpoint import InferenceEndpoint

__all__ = ["Server"]

_START_SECONDS = 30.0
_LAST_REPLIES_SECONDS = 5  # for replies that are on their way when the server ends
_IDLE_SECONDS = 60  # of a connection between two requests


class Server:
    """HTTP for a service: `with Server(service) as server: ... server.url ...`, or `server.run()` until a signal.

    It listens on loopback unless told otherwise; elsewhere every request needs `token`, which is made if none is
    given. `port` 0 takes any that is free. `name` is the ensemble's in the endpoints.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        name: str = "ensemble",
        limits: Limits | None = None,
    ) -> None:
        if not name or not name.isprintable() or set(name) & set("/?#%<>&\"'"):
            raise ServeConfigError(
                f"Server, name: got {name!r}; allowed: a word that fits into a URL, such as 'digits'"
            )
        self._service, self._host, self._port, self._name = service, host, port, name
        self._limits = Limits() if limits is None else limits
        # Whoever reaches the address may ask, so beyond loopback there is always a token.
        self.token = secrets.token_urlsafe(32) if token is None and not is_loopback(host) else token
        self._endpoint: InferenceEndpoint | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port; after `start` the one that was free."""
        return self._port

    @property
    def url(self) -> str:
        """The address, such as http://127.0.0.1:8000."""
        host = f"[{self._host.strip('[]')}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def start(self) -> Self:
        """Listen, and answer on a thread of its own; raises ListenError if the port cannot be had."""
        if self._thread is not None:
            raise ServeError("Server.start: was started before; allowed: once; make another one")
        uvicorn, endpoint, app = _make_application(self._service, self._name, self._limits, self._host, self.token)
        listener = bind(self._host, self._port)
        self._port = listener.getsockname()[1]
        from trainwright.serve.http.connection import bounded

        config = uvicorn.Config(
            app,
            http=bounded(self._limits.connections),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a request that is no HTTP is its sender's trouble
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_LAST_REPLIES_SECONDS,
        )
        self._endpoint, self._uvicorn = endpoint, uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._uvicorn.run, kwargs={"sockets": [listener]}, name="trainwright-http", daemon=True
        )
        # Uvicorn says that it listens by a flag alone.
        self._thread.start()
        until = time.monotonic() + _START_SECONDS
        while not self._uvicorn.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise ServeError(f"{self.url}: the server did not start; its log tells why")
            time.sleep(0.002)
        return self

    def stop(self, *, at_once: bool = False) -> None:
        """Close the address after the replies that are on their way; the service goes on. Safe to call twice."""
        if self._uvicorn is None or self._thread is None:
            return
        self._uvicorn.should_exit = True
        self._uvicorn.force_exit = at_once
        self._thread.join()

    def run(
        self, *, drain_seconds: float = 30.0, on_ready: Callable[["Server"], None] | None = None
    ) -> Mapping[str, Any]:
        """Answer until SIGTERM or SIGINT, then end the service too; returns what was answered. For the main thread.

        After the first signal new requests get 503 and admitted ones are finished for at most `drain_seconds`; the
        second ends it at once.
        """
        # Whose put() may interrupt its own get().
        signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        kinds = (signal.SIGTERM, signal.SIGINT)
        before = {kind: signal.signal(kind, lambda number, _frame: signals.put(number)) for kind in kinds}
        try:
            self.start()
            if on_ready is not None:
                on_ready(self)
            signals.get()
            # Replies to admitted requests go out before the address closes.
            in_time = self._drain_service(drain_seconds, signals)
            self.stop(at_once=not in_time)
        finally:
            self.stop(at_once=True)
            self._service.drain(0.0)
            for kind, handler in before.items():
                signal.signal(kind, handler)
        return self.summary()

    def summary(self) -> Mapping[str, Any]:
        """Return the inference requests by status, the rows, the degraded answers, and the service's state."""
        if self._endpoint is None:
            return {"requests": {}, "rows": 0, "degraded": 0, "disconnected": 0, "state": {}}
        metrics = self._endpoint.metrics
        return {"requests": metrics.by_status(), **metrics.counts, "state": dict(self._service.state())}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _drain_service(self, seconds: float, signals: "queue.SimpleQueue[int]") -> bool:
        """End the service while replies go out; return False if a second signal came meanwhile."""
        if self._endpoint is not None:
            self._endpoint.draining = True
        # Draining waits for admitted requests, while this thread listens for a second signal.
        ending = threading.Thread(target=self._service.drain, args=(seconds,), daemon=True)
        ending.start()
        while ending.is_alive():
            ending.join(0.05)
            if not signals.empty():
                return False
        return True


def _make_application(
    service: Service, name: str, limits: Limits, host: str, token: str | None
) -> tuple[Any, "InferenceEndpoint", Any]:
    """Return uvicorn, the endpoint and the guarded application; MissingExtra if what they need is not installed."""
    try:
        import uvicorn

        from trainwright.serve.http.app import OPEN_PATHS, application
        from trainwright.serve.http.infer_endpoint import InferenceEndpoint
    except ModuleNotFoundError as error:
        raise MissingExtra.of("a server", str(error.name), "serve") from error
    endpoint = InferenceEndpoint(service, name=name, limits=limits)
    guarded = Guard(
        application(endpoint),
        host=host,
        token=token,
        max_body_bytes=limits.body_bytes,
        open_paths=OPEN_PATHS,
        as_json=True,
    )
    return uvicorn, endpoint, _Counted(guarded, endpoint)


class _Counted:
    """ASGI: counts every answer by its status, those of the guard too."""

    def __init__(self, application: Any, endpoint: "InferenceEndpoint") -> None:
        self._application, self._endpoint = application, endpoint

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        endpoint = "infer" if scope.get("path", "").endswith("/infer") else "other"

        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._endpoint.metrics.requests[endpoint, message["status"]] += 1
            await send(message)

        await self._application(scope, receive, counted)
