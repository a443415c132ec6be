"""The listener at which worker processes of other nodes arrive, and their lines as the driver has them."""

import contextlib
import secrets
import selectors
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["LineWorker", "WorkerListener", "keep_alive"]

_GREET_SECONDS = 30.0
"""For which whoever comes to the listener may take to say who it is."""
_TOKEN_BYTES = 32


def keep_alive(line: socket.socket) -> None:
    """Let a line send what is small at once, and find out that its other end is gone."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class LineWorker:
    """A process on some node that comes to the listener and shows its token."""

    def __init__(self, slot: int, listener: "WorkerListener", token: bytes = b"") -> None:
        self.slot = slot
        # Any process of the network may knock at the listener; only this one knows the token.
        self.token = token or secrets.token_bytes(_TOKEN_BYTES)
        self.since = time.monotonic()
        self._listener = listener
        self._line: Connection[Any, Any] | None = None
        self._verdict: tuple[str, str] | None = None
        self._kill_at = float("inf")
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether the process has come to the listener."""
        return self._line is not None

    @property
    def connection(self) -> "Connection[Any, Any]":
        """The line to the process, once it is there."""
        if self._line is None:
            raise EOFError
        return self._line

    def connect(self, line: socket.socket) -> None:
        """Take the line to the process."""
        keep_alive(line)
        self._line = Connection(line.detach())

    def run(self, message: tuple[Any, ...]) -> None:
        """Send an assignment."""
        self.since = time.monotonic()
        with contextlib.suppress(OSError):
            # It died: the end of its connection will tell.
            self.connection.send(message)

    @property
    def seconds(self) -> float:
        """Seconds since the assignment was sent, or since it was started."""
        return time.monotonic() - self.since

    @property
    def terminating(self) -> bool:
        """Whether an end was decided for it."""
        return self._verdict is not None

    def resident_bytes(self) -> int:
        """Leave memory to what guards the process on its node."""
        return 0


class WorkerListener:
    """Where worker processes arrive, and the lines on which they speak. One wait serves any number of them."""

    def __init__(self, address: str) -> None:
        self._server = socket.create_server((address, 0), backlog=1024)
        self._server.setblocking(False)
        self._lines = selectors.DefaultSelector()
        self._lines.register(self._server, selectors.EVENT_READ)
        self._guests: dict[socket.socket, tuple[float, bytearray]] = {}  # when each came, what it has said
        self._expected: dict[bytes, LineWorker] = {}

    @property
    def address(self) -> tuple[str, int]:
        """Where to knock."""
        host, port = self._server.getsockname()[:2]
        return str(host), int(port)

    def expect(self, worker: LineWorker) -> None:
        """Let the process in that will show this worker's token."""
        self._expected[worker.token] = worker

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
                self._admit()
            elif isinstance(key.fileobj, socket.socket):
                self._greet(key.fileobj)
            else:
                ready.append(key.data)
        # Whoever does not say who it is must not keep a connection for ever.
        late = time.monotonic() - _GREET_SECONDS
        for guest in [guest for guest, (since, _) in self._guests.items() if since < late]:
            self._dismiss(guest)
            guest.close()
        return ready

    def close(self) -> None:
        """Close the listener; lines stay open."""
        for guest in list(self._guests):
            guest.close()
        self._lines.close()
        self._server.close()

    def _admit(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                guest, _ = self._server.accept()
                guest.setblocking(False)
                self._guests[guest] = time.monotonic(), bytearray()
                self._lines.register(guest, selectors.EVENT_READ)

    def _greet(self, guest: socket.socket) -> None:
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
        self._dismiss(guest)
        if worker is None:
            guest.close()
            return
        guest.setblocking(True)
        worker.connect(guest)
        self._lines.register(worker.connection, selectors.EVENT_READ, worker)

    def _dismiss(self, guest: socket.socket) -> None:
        del self._guests[guest]
        self._lines.unregister(guest)
