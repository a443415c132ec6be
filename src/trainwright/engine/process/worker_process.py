"""Starts (spawns) a worker process on this machine, watches it, and kills it with its children if need be."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from trainwright.engine.function_reference import IN_WORKER, LOADING
from trainwright.engine.process.listener import Worker, WorkerListener
from trainwright.engine.protocol import Died, Outcome, Raised
from trainwright.errors import EngineError
from trainwright.signals import LAUNCHER_SIGNALS, signals_held
from trainwright.train.assignment import Assignment

__all__ = ["ChildProcess", "WorkerProcess", "find_free_address", "log_path", "worker_environment"]

_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS})
"""Signals by which a process ends itself; any other comes from outside, and the trial may run again."""

_FAREWELL_SECONDS = 2.0
"""How long a process may take to end by itself."""

_FIRST_PORT, _PORTS = 12000, 20000
"""Below those of outgoing connections, which begin at 32768 on Linux."""
_TRIES = 100

_KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""glibc gives large blocks back when they are freed: each step on a CPU waited for new pages for its gradients."""


class ChildProcess:
    """A worker in a session of its own, so that it can be killed with all its children.

    It takes its assignments from `line`, a connected socket that becomes its own, and dies with the calling thread.
    Launcher signals are blocked from its start until it ignores them.
    """

    def __init__(self, environment: Mapping[str, str], line: socket.socket) -> None:
        terminating, self._terminating = os.pipe()
        weakref.finalize(self, os.close, self._terminating)
        # Only these two are inherited; everything else of the driver stays closed.
        descriptors = [line.fileno(), terminating]
        try:
            with line, signals_held():
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "trainwright.engine.process.worker", *map(str, (*descriptors, os.getpid()))],
                    env={**os.environ, **environment, IN_WORKER: LOADING, "PYTHONPATH": _python_path()},
                    stdin=subprocess.DEVNULL,
                    pass_fds=descriptors,
                    start_new_session=True,
                )
        finally:
            os.close(terminating)
        self._verdict: tuple[str, str] | None = None  # failure and message of a kill that we decided
        self._kill_at: float | None = None

    def terminate(self, failure: str, message: str, grace_seconds: float) -> None:
        """Ask the process to end, and kill its group after `grace_seconds`; `outcome` will tell this reason."""
        if self._verdict is None:
            self._verdict = failure, message
            self._kill_at = time.monotonic() + grace_seconds
            # Tells the worker that the SIGTERM is the driver's, not a launcher's.
            os.write(self._terminating, b"!")
            self._send_signal(signal.SIGTERM)

    def guard(self, memory_bytes: int | None, grace_seconds: float) -> None:
        """Ask a process that is over its memory to end; kill the group of one whose grace is over."""
        if memory_bytes is not None and not self.terminating:
            # The memory of the process and all its descendants.
            resident = sum(_read_resident(pid) for pid in _find_family(self._process.pid))
            if resident > memory_bytes:
                message = f"it held {resident:,} bytes of memory, above memory_bytes={memory_bytes:,}"
                self.terminate("out_of_memory", message, grace_seconds)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._send_signal(signal.SIGKILL)

    @property
    def ended(self) -> bool:
        """Whether the process is gone. A child that it forked may hold its line open all the same."""
        return self._process.poll() is not None

    @property
    def terminating(self) -> bool:
        """Whether an end was decided for it."""
        return self._verdict is not None

    def outcome(self) -> Outcome:
        """Return what the end of a process that has let go of its line means for its trial. Waits for the process."""
        with suppress(subprocess.TimeoutExpired):
            # It is about to end: a signal now would hide its exit status.
            self._process.wait(_FAREWELL_SECONDS)
        # Kill children that outlived it.
        self._send_signal(signal.SIGKILL)
        code = self._process.wait()
        if self._verdict is not None:
            failure, message = self._verdict
            return Raised(failure=failure, message=message)
        # A crash is the program's own; another signal came from outside.
        if code < 0 and signal.Signals(-code) in _CRASHES:
            message = f"the worker process crashed with {signal.Signals(-code).name}"
            return Raised(failure="killed", message=message)
        if code < 0:
            why = f"the worker process was killed by {signal.Signals(-code).name}"
            return Died(why=why, blame=-code not in LAUNCHER_SIGNALS)
        message = f"the worker process ended by itself with exit status {code}"
        return Raised(failure="killed", message=message)

    def close(self, *, kill: bool) -> None:
        """End the process: at once, or after waiting a little for one whose line is closed."""
        if not kill:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_FAREWELL_SECONDS)
        self._send_signal(signal.SIGKILL)
        self._process.wait()

    def _send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


class WorkerProcess(ChildProcess, Worker):
    """A worker on this machine, and the other end of its line."""

    def __init__(self, part: range, listener: WorkerListener, environment: Mapping[str, str]) -> None:
        Worker.__init__(self, part, listener)
        ours, theirs = socket.socketpair()
        ChildProcess.__init__(self, environment, theirs)
        listener.watch(self, Connection(ours.detach()))

    def outcome(self) -> Outcome:
        """Return what the end of the process means for its trial. Waits for the process."""
        self._listener.forget(self)
        return replace(super().outcome(), seconds=self.seconds)

    def find_address(self) -> str:
        """Return an address of this machine."""
        return find_free_address()

    def close(self, *, kill: bool) -> None:
        """End the process: at once, or by closing its line and waiting a little."""
        self.close_connection()
        super().close(kill=kill)


def log_path(directory: Path | None, assignment: Assignment) -> str | None:
    """Return the file of the output of a run's rank below a study's folder; None without one."""
    if directory is None:
        return None
    rank = f"-rank-{assignment.rank}" if assignment.rank else ""
    return str(directory / "logs" / f"trial-{assignment.trial:06d}" / f"lease-{assignment.lease}{rank}.log")


def find_free_address(host: str = "127.0.0.1") -> str:
    """Return an address of this machine where nobody listens.

    It is used only seconds later. Ports that the system gives to outgoing connections would often be taken by then.
    """
    for _ in range(_TRIES):
        # Drawn at random, since other studies on this host look for ports as well.
        address = host, _FIRST_PORT + secrets.randbelow(_PORTS)
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(address)
            return f"{host}:{address[1]}"
    raise EngineError(f"no free port on {host} in {_TRIES} tries from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1}")


def worker_environment(threads: int, gpus: str) -> dict[str, str]:
    """Return the environment of a worker of so many threads, which sees the GPUs of these indices or names."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    # Idle threads would spin on other workers' cores.
    defaults = {"OMP_WAIT_POLICY": "PASSIVE", **({} if gpus else _KEEP_FREED)}
    own = {name: os.environ.get(name, value) for name, value in defaults.items()}
    return {**dict.fromkeys(names, str(threads)), **own, "CUDA_VISIBLE_DEVICES": gpus}


def _python_path() -> str:
    """Return a PYTHONPATH with which a child finds this very package."""
    # The driver may run from a checkout that is not installed.
    home = str(Path(__file__).parents[3])
    existing = os.environ.get("PYTHONPATH", "")
    return home if not existing else f"{home}{os.pathsep}{existing}"


def _find_family(pid: int) -> list[int]:
    # Children are followed by /proc, since a trial's own processes may have left its group.
    pids, front = [pid], [pid]
    while front:
        parent = front.pop()
        try:
            text = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
        except OSError:
            continue
        children = [int(child) for child in text.split()]
        pids.extend(children)
        front.extend(children)
    return pids


def _read_resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGESIZE")
