"""The connections to worker processes, here or on other nodes, and the socket on which those of other nodes arrive."""

import contextlib
import secrets
import selectors
import socket
import time
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection
from typing import Any

from trainwright.engine.protocol import Outcome

__all__ = ["LineWorker", "Worker", "WorkerListener", "keep_alive"]

_GREET_SECONDS = 30.0
"""For which whoever comes to the listener may take to say who it is."""
_TOKEN_BYTES = 32
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A node that lost its power says nothing: its lines end after a minute of silence."""


def keep_alive(line: socket.socket) -> None:
    """Let a line send what is small at once, and find out that its other end is gone."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class LineWorker:
    """A process with a line; one of another node comes to the listener and shows its token."""

    def __init__(self, listener: "WorkerListener", token: bytes = b"") -> None:
        # Any process of the network may knock at the listener; only this one knows the token.
        self.token = token or secrets.token_bytes(_TOKEN_BYTES)
        self.since = time.monotonic()
        self._listener = listener
        self._line: Connection[Any, Any] | None = None

    @property
    def connected(self) -> bool:
        """Whether the line is there."""
        return self._line is not None

    @property
    def connection(self) -> "Connection[Any, Any]":
        """The line to the process, once it is there."""
        if self._line is None:
            raise EOFError
        return self._line

    def connect(self, line: "Connection[Any, Any]") -> None:
        """Take the line to the process."""
        self._line = line

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message; nothing to a process that is gone, as the end of its line will tell."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def close_connection(self) -> None:
        """Close the line, or expect the process no more."""
        self._listener.forget(self)
        if self._line is not None:
            self._line.close()

    @property
    def seconds(self) -> float:
        """Seconds since its assignment was sent, or since it was started."""
        return time.monotonic() - self.since


class Worker(LineWorker, ABC):
    """A worker process that serves the slots of `part`, one after another trial."""

    def __init__(self, part: range, listener: "WorkerListener") -> None:
        super().__init__(listener)
        self.part = part
        self._greeting: tuple[Any, ...] | None = None

    def connect(self, line: "Connection[Any, Any]") -> None:
        """Take the line to the process, and send its greeting."""
        super().connect(line)
        if self._greeting is not None:
            self.send(self._greeting)

    def greet(self, message: tuple[Any, ...]) -> None:
        """Send a message now, or as soon as the line is there."""
        self._greeting = message
        if self.connected:
            self.send(message)

    def run(self, message: tuple[Any, ...]) -> None:
        """Send an assignment."""
        self.since = time.monotonic()
        self.send(message)

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether it is gone."""

    @property
    @abstractmethod
    def terminating(self) -> bool:
        """Whether an end was decided for it."""

    @abstractmethod
    def terminate(self, failure: str, message: str, grace_seconds: float) -> None:
        """Ask it to end, and have it killed with its children after `grace_seconds`."""

    @abstractmethod
    def guard(self, memory_bytes: int | None, grace_seconds: float) -> None:
        """Ask it to end if it is over its memory; kill it if its grace is over."""

    @abstractmethod
    def outcome(self) -> Outcome:
        """Return what its end means for its trial."""

    @abstractmethod
    def find_address(self) -> str:
        """Return an address of its node where the ranks of a trial can meet; raises `OSError` if the node is gone."""

    @abstractmethod
    def close(self, *, kill: bool) -> None:
        """End it: at once, or by closing its line."""


class WorkerListener:
    """The lines to processes, and where those of other nodes arrive: none without `host`, the interface of the door.

    One wait serves any number of them.
    """

    def __init__(self, host: str | None = None) -> None:
        self._lines = selectors.DefaultSelector()
        self._guests: dict[socket.socket, tuple[float, bytearray]] = {}  # when each came, what it has said
        self._expected: dict[bytes, LineWorker] = {}
        self._server = None if host is None else socket.create_server((host, 0), backlog=1024)
        if self._server is not None:
            self._server.setblocking(False)
            self._lines.register(self._server, selectors.EVENT_READ)

    @property
    def address(self) -> tuple[str, int]:
        """Where to knock."""
        assert self._server is not None  # noqa: S101 -- who asks has made it with a door
        host, port = self._server.getsockname()[:2]
        return str(host), int(port)

    def expect(self, worker: LineWorker) -> None:
        """Let the process in that will show this worker's token."""
        self._expected[worker.token] = worker

    def watch(self, worker: LineWorker, line: "Connection[Any, Any]") -> None:
        """Listen to a worker on its line."""
        worker.connect(line)
        self._lines.register(line, selectors.EVENT_READ, worker)

    def forget(self, worker: LineWorker) -> None:
        """Stop listening to a worker."""
        self._expected.pop(worker.token, None)
        if worker.connected:
            with contextlib.suppress(KeyError, ValueError, OSError):
                # Not registered, or closed meanwhile.
                self._lines.unregister(worker.connection)

    def wait(self, timeout_seconds: float) -> list[Any]:
        """Return the workers that have something to say, after at most `timeout_seconds`; let in who has come."""
        ready = []
        for key, _ in self._lines.select(max(0.0, timeout_seconds)):
            if key.fileobj is self._server:
                self._accept_connections()
            elif isinstance(key.fileobj, socket.socket):
                self._authenticate(key.fileobj)
            else:
                ready.append(key.data)
        # Whoever does not say who it is must not keep a connection for ever.
        late = time.monotonic() - _GREET_SECONDS
        for guest in [guest for guest, (since, _) in self._guests.items() if since < late]:
            self._reject(guest)
            guest.close()
        return ready

    def close(self) -> None:
        """Close the listener; lines stay open."""
        for guest in list(self._guests):
            guest.close()
        self._lines.close()
        if self._server is not None:
            self._server.close()

    def _accept_connections(self) -> None:
        assert self._server is not None  # noqa: S101 -- it has just been ready
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                guest, _ = self._server.accept()
                guest.setblocking(False)
                self._guests[guest] = time.monotonic(), bytearray()
                self._lines.register(guest, selectors.EVENT_READ)

    def _authenticate(self, guest: socket.socket) -> None:
        """Let a guest in whose token is expected; anybody else is none of ours."""
        _, said = self._guests[guest]
        try:
            heard = guest.recv(_TOKEN_BYTES - len(said))
        except OSError:
            heard = b""
        said += heard
        if heard and len(said) < _TOKEN_BYTES:
            # The rest is on its way.
            return
        worker = self._expected.pop(bytes(said), None)
        self._reject(guest)
        if worker is None:
            guest.close()
            return
        guest.setblocking(True)
        keep_alive(guest)
        self.watch(worker, Connection(guest.detach()))

    def _reject(self, guest: socket.socket) -> None:
        del self._guests[guest]
        self._lines.unregister(guest)
