"""A worker process on some node as the driver sees it, and the listener at which such processes arrive."""

import contextlib
import secrets
import selectors
import socket
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from trainwright.engine.protocol import Died, Outcome, Raised

__all__ = ["RemoteWorker", "WorkerListener"]

_GREET_SECONDS = 30.0
"""For which whoever comes to the listener may take to say who it is."""
_LAST_WORDS_SECONDS = 15.0
"""How long an actor may take to say how its process ended."""
_TOKEN_BYTES = 32


class RemoteWorker:
    """What `Gang` needs of a worker process; its actor guards the process, and `ending` is what that will say of it.

    `actor` is the handle of a `DeviceHost`, `ray` the module; `actor_lost` says that the slot needs another actor,
    `ended` that the process or its actor has ended: the engine looks for that.
    """

    def __init__(self, ray: Any, actor: Any, slot: int, listener: "WorkerListener") -> None:
        self.slot = slot
        self.actor = actor
        self.actor_lost = False
        # Any process of the network may knock at the listener; only this one knows the token.
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.ending: Any = None
        self.ended = False
        self.since = time.monotonic()
        self._ray = ray
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
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
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

    def terminate(self, failure: str, message: str, grace_seconds: float) -> None:
        """Have the process asked to end, and killed with its children after `grace_seconds`."""
        if self._verdict is None:
            self._verdict = failure, message
            # The actor kills the process itself; the driver steps in only if that hangs.
            self._kill_at = time.monotonic() + grace_seconds + _LAST_WORDS_SECONDS
            self.actor.terminate.remote(failure, message, grace_seconds)

    def enforce(self) -> None:
        """Kill the actor if it has not killed the process long after its grace was over."""
        if time.monotonic() > self._kill_at:
            self._ray.kill(self.actor)

    def outcome(self) -> Outcome:
        """Return what the end of the process means for its trial."""
        self._listener.forget(self)
        try:
            ended: Outcome = self._ray.get(self.ending, timeout=_LAST_WORDS_SECONDS)
            outcome = replace(ended, seconds=self.seconds)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.kill(self.actor)
            self.actor_lost = True
            outcome = Died(
                why="the line to the worker process broke, and its actor did not answer", seconds=self.seconds
            )
        except self._ray.exceptions.OutOfMemoryError:
            self.actor_lost = True
            outcome = Died(why="Ray killed the actor because its node ran out of memory", seconds=self.seconds)
        except self._ray.exceptions.RayError as error:
            self.actor_lost = True
            reason = _line_of(error)
            why = f"the trial's actor is gone: {reason}"
            outcome = Died(why=why, blame="node has died" not in reason, seconds=self.seconds)
        # The engine had asked for this end: its reason counts.
        if self._verdict is not None and isinstance(outcome, Died):
            return Raised(failure=self._verdict[0], message=self._verdict[1], seconds=outcome.seconds)
        return outcome

    def resident_bytes(self) -> int:
        """Leave memory to the actor, which watches it beside the process."""
        return 0

    def close(self, *, kill: bool) -> None:
        """End the process: at once, or by closing its line."""
        self._listener.forget(self)
        if self._line is not None:
            self._line.close()
        if kill and not self._closed:
            self.actor.stop.remote()
        self._closed = True


class WorkerListener:
    """Where worker processes arrive, and the lines on which they speak. One wait serves any number of them."""

    def __init__(self, address: str) -> None:
        self._server = socket.create_server((address, 0), backlog=1024)
        self._server.setblocking(False)
        self._lines = selectors.DefaultSelector()
        self._lines.register(self._server, selectors.EVENT_READ)
        self._guests: dict[socket.socket, tuple[float, bytearray]] = {}  # when each came, what it has said
        self._expected: dict[bytes, RemoteWorker] = {}

    @property
    def address(self) -> tuple[str, int]:
        """Where to knock."""
        host, port = self._server.getsockname()[:2]
        return str(host), int(port)

    def expect(self, worker: RemoteWorker) -> None:
        """Let the process in that will show this worker's token."""
        self._expected[worker.token] = worker

    def forget(self, worker: RemoteWorker) -> None:
        """Stop listening to a worker."""
        self._expected.pop(worker.token, None)
        if worker.connected:
            with contextlib.suppress(KeyError, ValueError, OSError):
                # Not registered, or closed meanwhile.
                self._lines.unregister(worker.connection)

    def wait(self, timeout_seconds: float) -> list[RemoteWorker]:
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


def _line_of(error: Exception) -> str:
    """Return the sentence of an error of Ray's that says most: the first is about tasks, the reason comes later."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    chosen = next((line for line in lines if "is dead because" in line), lines[0] if lines else type(error).__name__)
    return chosen.partition(". ")[0]
