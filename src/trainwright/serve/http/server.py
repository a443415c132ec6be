"""Starts and stops the HTTP server of a service: binds, runs in a thread or until a signal, and drains."""

import asyncio
import gc
import queue
import secrets
import signal
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from trainwright.errors import MissingExtra, ServeConfigError, ServeError
from trainwright.http_security import AccessRules, bind, is_loopback
from trainwright.serve.http.model_folders import FIRST_VERSION, ModelFolders
from trainwright.serve.service import Limits, Service

if TYPE_CHECKING:
    import socket

    from trainwright.serve.http.app import Application
    from trainwright.serve.http.grpc_server import GrpcServer
    from trainwright.serve.http.models import ModelRepository

__all__ = ["Server"]

_LAST_REPLIES_SECONDS = 5  # for replies that are on their way when the server ends


class Server:
    """HTTP for a service: `with Server(service) as server: ... server.url ...`, or `server.run()` until a signal.

    In place of a service it takes the folders of several models.
    It listens on loopback unless told otherwise; elsewhere every request needs `token`, which is made if none is
    given. `port` 0 takes any that is free. `name` is the ensemble's in the endpoints. With `grpc_port` the protocol is
    answered over gRPC too.
    """

    def __init__(
        self,
        service: Service | ModelFolders,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        name: str = "ensemble",
        limits: Limits | None = None,
        grpc_port: int | None = None,
    ) -> None:
        if not name or not name.isprintable() or set(name) & set("/?#%<>&\"'"):
            raise ServeConfigError(
                f"Server, name: got {name!r}; allowed: a word that fits into a URL, such as 'digits'"
            )
        self._service, self._host, self._port, self._name = service, host, port, name
        self._limits = Limits() if limits is None else limits
        # Whoever reaches the address may ask, so beyond loopback there is always a token.
        self.token = secrets.token_urlsafe(32) if token is None and not is_loopback(host) else token
        self.grpc_port = grpc_port  # after `start` the one that was free
        self._models: ModelRepository | None = None
        self._application: Application | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Set when it listens, or could not, and when it is to end.
        self._started, self._failure = threading.Event(), ""
        self._ending: asyncio.Event | None = None
        self._grace_seconds: float = _LAST_REPLIES_SECONDS
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
        """Listen, and serve in a thread; raises ListenError if the port is not available."""
        if self._thread is not None:
            raise ServeError("Server.start: was started before; allowed: once; make another one")
        runner = _make_runner()
        from trainwright.serve.http.models import ModelRepository

        folders = None if isinstance(self._service, Service) else self._service
        self._models = ModelRepository(_start_services(self._service, self._name), folders)
        listener = bind(self._host, self._port)
        self._port = listener.getsockname()[1]
        self._thread = threading.Thread(
            target=self._run_thread, args=(runner, listener, self._models), name="trainwright-http", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._failure:
            self._thread.join()
            raise ServeError(f"{self.url}: the server did not start ({self._failure})")
        return self

    def stop(self, *, at_once: bool = False) -> None:
        """Close the address after pending replies; the service keeps running. Safe to call twice."""
        if self._thread is None or self._loop is None or self._ending is None:
            return
        if at_once:
            self._grace_seconds = 0.0
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
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
        before: Mapping[signal.Signals, Any] = {}
        try:
            # Which a signal interrupts, as it does any program: to place members takes seconds.
            self.start()
            before = {kind: signal.signal(kind, lambda number, _frame: signals.put(number)) for kind in kinds}
            # What is loaded by now stays: to look through all of it again stops requests for a quarter of a second.
            gc.collect()
            gc.freeze()
            if on_ready is not None:
                on_ready(self)
            signals.get()
            # Replies to admitted requests go out before the address closes.
            in_time = self._drain_service(drain_seconds, signals)
            self.stop(at_once=not in_time)
        finally:
            self.stop(at_once=True)
            self._end_service(0.0)
            gc.unfreeze()
            for kind, handler in before.items():
                signal.signal(kind, handler)
        return self.summary()

    def summary(self) -> Mapping[str, Any]:
        """Return the inference requests by status, the rows, the degraded answers, and the service's state."""
        if self._application is None or self._models is None:
            raise ServeError("Server.summary: has not started; allowed: afterwards")
        metrics = self._application.metrics
        states = {f"{model.name}/{model.version}": dict(model.service.state()) for model in self._models}
        state = next(iter(states.values())) if len(states) == 1 else states
        by_status = {str(status): n for (endpoint, status), n in metrics.requests.items() if endpoint == "infer"}
        return {"requests": by_status, **metrics.counts, "state": state}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exception: object) -> None:
        self.stop()
        # What it loaded from a source is its own to end.
        if not isinstance(self._service, Service):
            self._end_service(0.0)

    def _drain_service(self, seconds: float, signals: "queue.SimpleQueue[int]") -> bool:
        """End the service while replies go out; return False if a second signal came meanwhile."""
        if self._application is not None:
            self._application.inference.draining = True
        # Draining waits for admitted requests, while this thread listens for a second signal.
        ending = threading.Thread(target=self._end_service, args=(seconds,), daemon=True)
        ending.start()
        while ending.is_alive():
            ending.join(0.05)
            if not signals.empty():
                return False
        return True

    def _end_service(self, seconds: float) -> None:
        if self._models is not None:
            self._models.drain(seconds)

    def _run_thread(self, runner: "asyncio.Runner", listener: "socket.socket", models: "ModelRepository") -> None:
        try:
            with runner, listener:
                runner.run(self._listen(listener, models))
        except Exception as error:  # noqa: BLE001 - the thread that started this one tells of it
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._started.set()

    async def _listen(self, listener: "socket.socket", models: "ModelRepository") -> None:
        from trainwright.serve.http.app import OPEN_PATHS, Application, read_page
        from trainwright.serve.http.connection import Connections

        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        page, policy = read_page()
        first = next(iter(models), None)
        page = page.replace("{{name}}", self._name if first is None else first.name)
        application = Application(models, limits=self._limits, page=page, token=self.token is not None)
        rules = AccessRules(
            host=self._host,
            token=self.token,
            headers={"content-security-policy": policy},
            max_body_bytes=self._limits.body_bytes,
            open_paths=OPEN_PATHS,
        )
        connections = Connections(
            application, rules=rules, most=self._limits.connections, body_seconds=self._limits.body_seconds
        )
        listening = await self._loop.create_server(connections.make_connection, sock=listener, backlog=1024)
        rpc = None
        if self.grpc_port is not None:
            rpc = _make_grpc(application, rules, self._limits)
            self.grpc_port = await rpc.start(self._host, self.grpc_port)
        self._application = application
        self._started.set()
        await self._ending.wait()
        listening.close()
        if rpc is not None:
            await rpc.stop(self._grace_seconds)
        await connections.close(self._grace_seconds)


def _start_services(service: Service | ModelFolders, name: str) -> Mapping[str, Mapping[str, Service]]:
    """Return the services by name and version: the given one, or all that a source loads."""
    if isinstance(service, Service):
        return {name: {FIRST_VERSION: service}}
    found: dict[str, Mapping[str, Service]] = {}
    try:
        for one in service.names():
            found[one] = service.load(one, {})
    except BaseException:
        for running in [running for versions in found.values() for running in versions.values()]:
            running.drain(0.0)
        raise
    return found


def _make_grpc(application: "Application", rules: AccessRules, limits: Limits) -> "GrpcServer":
    try:
        from trainwright.serve.http.grpc_server import GrpcServer
    except ModuleNotFoundError as error:
        raise MissingExtra.of("a gRPC server", str(error.name), "grpc") from error
    return GrpcServer(application, rules=rules, limits=limits)


def _make_runner() -> "asyncio.Runner":
    """Return what runs the event loop: uvloop, if it is installed; MissingExtra if the parser is not."""
    try:
        import httptools
        import pydantic  # noqa: F401 - what requests are read by
    except ModuleNotFoundError as error:
        raise MissingExtra.of("a server", str(error.name), "serve") from error
    del httptools
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
