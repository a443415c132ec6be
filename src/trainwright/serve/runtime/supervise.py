"""Supervision of worker processes: starting, sending, ending, and when one hangs or has failed permanently."""

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from trainwright.serve.placement.devices import thread_environment
from trainwright.serve.runtime.arena import Arena
from trainwright.serve.runtime.messages import send_message
from trainwright.serve.runtime.settings import DeploymentSettings

__all__ = ["Health", "ServingProcess"]

_WINDOW = 64  # batches whose median is the usual one
_FAREWELL_SECONDS = 2.0


class ServingProcess:
    """A fresh interpreter, never a fork; it inherits its end of a connection and the descriptor of the shared memory.

    Its threads, and that they wait without spinning, are set in its environment, before it loads torch. It leaves when
    its line ends, so with its front.
    """

    def __init__(self, arena: Arena, told: Mapping[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainwright.serve.runtime.worker", str(theirs.fileno()), str(arena.descriptor)],
                env={
                    **thread_environment(told["threads"]),
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                },
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), arena.descriptor],
            )
        self.line: Connection[Any, Any] = Connection(ours.detach())
        self.send(told)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a task or a JSON object; a process that has died is not told, its silence will say so."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_message(self.line, message)

    @property
    def ended(self) -> bool:
        """Say whether the process is gone, even if another process holds its connection open."""
        return self._process.poll() is not None

    def kill(self) -> str:
        """End the process at once if it has not ended, and return how it did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # One that is on its way out tells its own status.
            self._process.wait(0.05)
        self._process.kill()
        code = self._process.wait()
        self.line.close()
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"

    def leave(self) -> None:
        """Wait for a process whose connection was closed to end by itself, and end it if it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL_SECONDS)
        self._process.kill()
        self._process.wait()


@dataclass(kw_only=True)
class Health:
    """What is known of an instance's past; pure: times are given."""

    settings: DeploymentSettings
    _failures: deque[float] = field(default_factory=deque)
    _batches: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def batch(self, seconds: float) -> None:
        """Note how long a batch took."""
        self._batches.append(seconds)

    @property
    def median_seconds(self) -> float:
        """The usual batch; 0 before the first."""
        return statistics.median(self._batches) if self._batches else 0.0

    def hung(self, silent_seconds: float) -> bool:
        """Say whether an instance that has work has been silent for too long: 10 x its median batch and some."""
        return silent_seconds > 10.0 * self.median_seconds + self.settings.hung_seconds

    def failed(self, now: float) -> float | None:
        """Note an end, and return after how many seconds to start anew; None if it came to too many."""
        self._failures.append(now)
        while self._failures[0] < now - self.settings.failure_seconds:
            self._failures.popleft()
        # Too many ends within the window: restarting does not help.
        if len(self._failures) >= self.settings.failures:
            return None
        return self.settings.backoff_seconds * 2.0 ** (len(self._failures) - 1)
