"""A machine of simulated processes for `simulation`: one clock, one file system, faults drawn from a seed.

Each process is a thread, of which one runs at a time. While a `SimulatedMachine` is entered, the functions of `os`,
`io`, `time` and `secrets` that the real code calls go through it for these threads alone: there the clock is virtual, a
process may stop, be killed or lose its power, and a write, a sync or a link may fail. All else in the process is as
ever.
"""

import io
import math
import os
import secrets
import shutil
import socket
import threading
import time
from _thread import get_ident, start_new_thread
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

from trainwright.checkpoint import manager
from trainwright.checkpoint.state.fingerprint import capture_fingerprint
from trainwright.engine.process import run_assignment
from trainwright.study.driver import heartbeat
from trainwright.testing.simulated_files import Killed, SimulatedFiles, SimulatedProcess, taken_lock

__all__ = ["FAULTS", "LETHAL", "SimulatedMachine", "Stalled"]

FAULTS = ("kill", "power", "stop", "clock", "rot", "space", "torn", "write", "sync", "link", "stale")
"""Killed; power lost with all that was not synced; stopped for long; clock set; killed where a checkpoint was just
published, while a bit of a newest one turns; no space; part of a write; errors of write, sync and link, of the last
after it was done; an old size of a file that others write, or an old list of files."""

LETHAL = frozenset({"kill", "power", "rot", "torn"})
_ANYWHERE = frozenset({"kill", "power", "stop", "clock"})
_LEASE_SECONDS, _BEATS = 180.0, 12
_MOST_OPERATIONS = 60_000
_OPERATION_SECONDS = 2e-2  # as on a busy network file system: readers look the more seldom, the longer it takes
_LONGEST_STOP_SECONDS = 500.0
_LONGEST_OVERSLEEP = 10.0  # a busy machine wakes a process up to so many times later than it asked for

_idle = SimpleNamespace(start=lambda: None, join=lambda: None)
_NO_THREADS = SimpleNamespace(Thread=lambda **_: _idle, Event=threading.Event)
_capture_once = cache(capture_fingerprint)  # all simulated processes have the environment of this one


class Stalled(Exception):
    """A history that does not come to its end."""


class SimulatedMachine(SimulatedFiles):
    """Runs processes in an order that `seed` draws; `planned` maps numbers of operations to the faults that strike."""

    def __init__(self, seed: int, planned: dict[int, str], folder: Path) -> None:
        super().__init__(seed, folder)
        self.planned = {**planned}
        self.happened: dict[int, str] = {}
        self.operations = 0
        self._waiting = sorted(planned)
        self.next_fault: float = min(planned, default=math.inf)
        self._back = taken_lock()
        self.processes: list[SimulatedProcess] = []
        # Those that have not ended, and whose turn it is: in its thread alone the seams are simulated.
        self._alive: list[SimulatedProcess] = []
        self._thread = 0
        self._boots = 0
        self._real: dict[tuple[ModuleType, str], Any] = {}

    # The order.

    def start(self, name: str, body: Callable[[SimulatedProcess], None]) -> SimulatedProcess:
        """Add a process that runs `body` from now on."""
        process = SimulatedProcess(name=name, wakes_at=self.now, boot=self._boots)

        def run() -> None:
            process.go.acquire()
            self._thread = process.thread = get_ident()
            try:
                if not process.dead:
                    body(process)
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 -- told to whoever reads the history
                process.error = error
            finally:
                self._thread = 0
                process.ended = True
                self._alive.remove(process)
                self._back.release()

        start_new_thread(run, ())
        self.processes.append(process)
        self._alive.append(process)
        return process

    def hasten_faults(self) -> None:
        """Let what has found nothing to strike so far stop whoever comes next."""
        self.planned |= dict.fromkeys(self._waiting, "stop")
        self.next_fault = 0

    def run(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Let processes take turns until all have ended, or `goes_on` says no; raises `Stalled` if that never comes."""
        # It is looked at when a process has ended: between them they pass the turn on directly.
        while self._alive and goes_on():
            turn = self._draw_turn()
            if turn is not None:
                turn.go.release()
                self._back.acquire()
            if self.operations > _MOST_OPERATIONS:
                raise Stalled(f"no end after {self.operations} operations")

    def _draw_turn(self) -> SimulatedProcess | None:
        """Return the process that goes on; None if the history takes too long."""
        if self.operations > _MOST_OPERATIONS:
            return None
        while not (ready := [one for one in self._alive if one.dead or one.wakes_at <= self.now]):
            self.now = min(one.wakes_at for one in self._alive)
        turn = self.running = ready[int(self.draws.random() * len(ready))]
        self._thread = turn.thread
        return turn

    def _yield(self, process: SimulatedProcess) -> None:
        turn = self._draw_turn()
        if turn is not process:
            (self._back if turn is None else turn.go).release()
            process.go.acquire()
        if process.dead:
            raise Killed

    def _sleep(self, seconds: float) -> None:
        process: SimulatedProcess = self.running
        until = self.now + max(seconds, 1e-6) * self.draws.uniform(1.0, _LONGEST_OVERSLEEP)
        while self.now < until:
            process.wakes_at = min(until, process.beats_at) if process.beat else until
            self._yield(process)
            if process.beat is not None and self.now >= process.beats_at:
                process.beats_at = self.now + _LEASE_SECONDS / _BEATS
                try:
                    process.beat()
                except Exception:  # noqa: BLE001 -- as the thread of `Heartbeat` keeps it for later
                    process.beats_at = self.now + 1.0

    # Faults.

    def operate(self, *kinds: str) -> str:
        """Count an operation, perhaps let others go first, and return the fault that strikes it, if one does.

        A planned fault strikes the first operation from its number on that is of its kind.
        """
        process = self.running
        if process.dead:
            raise Killed
        self.operations += 1
        self.now += _OPERATION_SECONDS
        if self.operations >= self.next_fault:
            for at in self._waiting:
                if at > self.operations:
                    break
                if (fault := self.planned[at]) in _ANYWHERE or fault in kinds:
                    self._waiting.remove(at)
                    self.next_fault = min(self._waiting, default=math.inf)
                    self.happened[at] = fault
                    self._strike(process, fault)
                    return fault
        if self.draws.random() < 0.1:
            process.wakes_at = self.now
            self._yield(process)
        return ""

    def _strike(self, process: SimulatedProcess, fault: str) -> None:
        """Let a fault strike that can at any operation."""
        if fault == "power":
            self._lose_power()
        if fault in {"kill", "power"}:
            process.dead = True
            raise Killed
        if fault == "stop":
            process.wakes_at = self.now + self.draws.uniform(1.0, _LONGEST_STOP_SECONDS)
            process.outlived |= process.wakes_at - self.now > _LEASE_SECONDS
            self._yield(process)
        elif fault == "clock":
            process.clock_offset += self.draws.gauss(0.0, 1.0) * 1e6

    def _lose_power(self) -> None:
        """End all processes, and lose what was not synced: of each file its end, of each folder its latest names."""
        for process in self.processes:
            for path in process.synced:
                self.lose_unsynced(process, path)
            process.dead = True
        self._boots += 1
        thread, self._thread = self._thread, 0  # what follows is no operation of a process
        self.lose_names()
        self._thread = thread

    # What the real code calls.

    def __enter__(self) -> Self:
        seams: dict[tuple[ModuleType, str], Any] = {
            (io, "open"): self._on_file(io.open, self.open_text),
            (os, "readlink"): self._in_process(os.readlink, self.read_link),
            (time, "time"): self._in_process(time.time, lambda: self.now + self.running.clock_offset),
            (time, "monotonic"): self._in_process(time.monotonic, lambda: self.now),
            (time, "perf_counter"): self._in_process(time.perf_counter, lambda: self.now),
            (time, "sleep"): self._in_process(time.sleep, self._sleep),
            (secrets, "token_hex"): self._in_process(
                secrets.token_hex, lambda size=16: self.draws.randbytes(size).hex()
            ),
            (secrets, "randbelow"): self._in_process(secrets.randbelow, self.draws.randrange),
            # What differs between machines and runs would be in records, whose lengths are part of a history.
            (socket, "gethostname"): self._in_process(socket.gethostname, lambda: "simulated"),
            (os, "getpid"): self._in_process(os.getpid, lambda: 2**30),
            (shutil, "disk_usage"): self._in_process(shutil.disk_usage, lambda _: SimpleNamespace(free=2**40)),
            (os, "cpu_count"): self._in_process(os.cpu_count, lambda: 2),
            (manager, "capture_fingerprint"): self._in_process(capture_fingerprint, _capture_once),
            # No training here draws; the heartbeat of a process is sent while it sleeps.
            (run_assignment, "seed_all"): lambda *_: None,
            (run_assignment, "traceback_of"): lambda _: "",
            (heartbeat, "threading"): _NO_THREADS,
        }
        for name, simulated in self.operations_of_os().items():
            seams[os, name] = self._on_file(getattr(os, name), simulated)
        self._real = {place: getattr(*place) for place in seams}
        for (module, name), seam in seams.items():
            setattr(module, name, seam)
        return self

    def __exit__(self, *_: object) -> None:
        # Killed, so that no thread stays.
        for process in self.processes:
            process.dead = True
        self.operations = 0
        self.run()
        for (module, name), real in self._real.items():
            setattr(module, name, real)

    def _in_process(self, real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is the simulated one in the thread of the simulated process whose turn it is."""

        def either(*arguments: Any, **settings: Any) -> Any:
            called = simulated if get_ident() == self._thread else real
            return called(*arguments, **settings)

        return either

    def _on_file(self, real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same for a function whose first argument is a path or an open file, if that is the history's."""
        folder, fspath = self.folder, os.fspath

        def either(place: Any, *arguments: Any, **settings: Any) -> Any:
            ours = False
            if get_ident() == self._thread:
                if type(place) is int:
                    ours = place in self.running.paths
                else:
                    place = fspath(place)
                    ours = type(place) is str and place.startswith(folder)
            return (simulated if ours else real)(place, *arguments, **settings)

        return either
