"""A machine of simulated processes for `simulation`: one clock, one file system, faults drawn from a seed.

Each process is a thread, of which one runs at a time. While a `SimulatedMachine` is entered, the functions of `os`,
`io`, `time` and `secrets` that the real code calls go through it for these threads alone: there the clock is virtual, a
process may stop, be killed or lose its power, and a write, a sync or a link may fail. All else in the process is as
ever.
"""

# ruff: noqa: PTH104, PTH108, PTH112, PTH120 -- paths are texts here, as the seams get them

import builtins
import errno
import io
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np

from trainwright.checkpoint import manager
from trainwright.checkpoint.state.fingerprint import capture_fingerprint
from trainwright.engine.process import run_assignment
from trainwright.randomness import rng

__all__ = ["FAULTS", "Killed", "SimulatedMachine", "SimulatedProcess", "Stalled"]

FAULTS = ("kill", "power", "stop", "clock", "rot", "space", "torn", "write", "sync", "link", "stale")
"""Killed; power lost with all that was not synced; stopped for long; clock set; killed while a bit of a newest
checkpoint turns; no space; part of a write; errors of write, sync and link, of the last after it was done; an old size
of a file that others write, or an old list of files."""

_ANYWHERE = frozenset({"kill", "power", "stop", "clock", "rot"})
_LEASE_SECONDS, _BEATS = 180.0, 12
_MOST_OPERATIONS = 60_000
_OPERATION_SECONDS = 5e-3  # as on a network file system: readers look the more seldom, the longer it takes
_WRITE_BACK_SECONDS = 30.0  # after which a system writes pages by itself
_STALE_SECONDS = 30.0
_LONGEST_STOP_SECONDS = 500.0
_LONGEST_OVERSLEEP = 10.0  # a busy machine wakes a process up to so many times later than it asked for


_RENAMES, _MAKE = (os.rename, os.replace), os.mkdir
_capture_once = cache(capture_fingerprint)  # all simulated processes have the environment of this one


class Killed(BaseException):
    """Ends the thread of a process that was killed: raised by whatever it does from then on."""


class Stalled(Exception):
    """A history that does not come to its end."""


@dataclass(eq=False)
class SimulatedProcess:
    """A simulated process: when it goes on (virtual seconds), its clock's error, how much of its files is synced.

    `boot` counts the losses of power before it was started: none of an earlier boot lives. `outlived`: it was once
    stopped for longer than a lease.
    """

    name: str
    wakes_at: float
    boot: int = 0
    clock_offset: float = 0.0
    dead: bool = False
    sync_failed: bool = False
    outlived: bool = False
    ended: bool = False
    beats_at: float = 0.0
    beat: Callable[[], None] | None = None
    error: BaseException | None = None
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    paths: dict[int, str] = field(default_factory=dict)
    synced: dict[str, tuple[int, float]] = field(default_factory=dict)
    sizes: dict[str, tuple[float, int]] = field(default_factory=dict)
    listings: dict[str, tuple[float, list[str]]] = field(default_factory=dict)


class SimulatedMachine:
    """Runs processes in an order that `seed` draws; `planned` maps numbers of operations to the faults that strike."""

    def __init__(self, seed: int, planned: dict[int, str], folder: Path) -> None:
        self.planned = planned
        self._folder = str(folder)
        self.happened: dict[int, str] = {}
        self.operations = 0
        self._waiting = sorted(planned)
        self.now = 0.0
        self._start = time.time()
        self._draws: np.random.Generator = rng(seed, "simulation", 0)
        self._here = threading.local()
        self._back = threading.Semaphore(0)
        self.processes: list[SimulatedProcess] = []
        self._boots = 0
        self._real: dict[tuple[ModuleType, str], Any] = {}
        # By folder: names that it got since it was synced, when, and what they were before a rename.
        self._names: dict[str, list[tuple[float, str, str | None]]] = {}

    # The order.

    def start(self, name: str, body: Callable[[SimulatedProcess], None]) -> SimulatedProcess:
        """Add a process that runs `body` from now on."""
        process = SimulatedProcess(name=name, wakes_at=self.now, boot=self._boots)

        def run() -> None:
            process.go.acquire()
            self._here.process = process
            try:
                if not process.dead:
                    body(process)
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 -- told to whoever reads the history
                process.error = error
            finally:
                self._here.process = None
                process.ended = True
                self._back.release()

        threading.Thread(target=run, name=name, daemon=True).start()
        self.processes.append(process)
        return process

    def end_faults(self) -> None:
        """Let no further fault strike."""
        self._waiting = []

    def run(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Let processes take turns until all have ended, or `goes_on` says no; raises `Stalled` if that never comes."""
        while (alive := [one for one in self.processes if not one.ended]) and goes_on():
            ready = [one for one in alive if one.dead or one.wakes_at <= self.now]
            if not ready:
                self.now = min(one.wakes_at for one in alive)
                continue
            ready[int(self._draws.integers(len(ready)))].go.release()
            self._back.acquire()
            if self.operations > _MOST_OPERATIONS:
                raise Stalled(f"no end after {self.operations} operations and {self.now:.0f} virtual seconds")

    def stop_all(self) -> None:
        """Kill what is left, so that no thread stays."""
        for process in self.processes:
            process.dead = True
        self.operations = 0
        self.run()

    def _yield(self, process: SimulatedProcess) -> None:
        self._back.release()
        process.go.acquire()
        if process.dead:
            raise Killed

    def _sleep(self, seconds: float) -> None:
        process: SimulatedProcess = self._here.process
        until = self.now + max(seconds, 1e-6) * float(self._draws.uniform(1.0, _LONGEST_OVERSLEEP))
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

    def _operate(self, process: SimulatedProcess, *kinds: str) -> str:
        """Count an operation, perhaps let others go first, and return the fault that strikes it, if one does.

        A planned fault strikes the first operation from its number on that is of its kind.
        """
        if process.dead:
            raise Killed
        self.operations += 1
        self.now += _OPERATION_SECONDS
        fault = ""
        if self._waiting and self._waiting[0] <= self.operations:
            due = [at for at in self._waiting if at <= self.operations and self.planned[at] in {*_ANYWHERE, *kinds}]
            if due:
                fault = self.happened[due[0]] = self.planned[due[0]]
                self._waiting.remove(due[0])
        if fault == "rot":
            self._turn_bit()
        if fault in {"kill", "power", "rot"}:
            if fault == "power":
                self._lose_power()
            process.dead = True
            raise Killed
        if fault == "stop":
            process.wakes_at = self.now + float(self._draws.uniform(1.0, _LONGEST_STOP_SECONDS))
            process.outlived |= process.wakes_at - self.now > _LEASE_SECONDS
            self._yield(process)
        elif fault == "clock":
            process.clock_offset += float(self._draws.normal()) * 1e6
        elif self._draws.random() < 0.1:
            process.wakes_at = self.now
            self._yield(process)
        return fault

    def _lose_power(self) -> None:
        """End all processes, and lose what was not synced: of each file its end, of each folder its latest names."""
        for process in self.processes:
            for path in process.synced:
                self._lose_unsynced(process, path)
            process.dead = True
        self._boots += 1
        here, self._here.process = self._here.process, None  # what follows is no operation of a process
        for folder, names in sorted(self._names.items()):
            recent = [each for each in names if self.now - each[0] < _WRITE_BACK_SECONDS]
            for _, path, before in reversed(recent[int(self._draws.integers(len(recent) + 1)) :]):
                if before is not None and os.path.lexists(path):
                    os.rename(path, before)
                elif os.path.isdir(path):
                    shutil.rmtree(path)
                elif os.path.lexists(path):
                    os.unlink(path)
            self._names[folder] = []
        self._here.process = here

    def _note_name(self, path: Any, before: str | None = None) -> None:
        """Note that a folder has a new name, that of `before` until now or of nothing."""
        self._names.setdefault(os.path.dirname(path), []).append((self.now, str(path), before))

    def _lose_unsynced(self, process: SimulatedProcess, path: str) -> None:
        """Cut what was written to a file and not synced, or leave zeros or other bytes there, as file systems may."""
        synced, since = process.synced[path]
        if (size := self._size_of(path)) > synced and self.now - since < _WRITE_BACK_SECONDS:
            if self._draws.random() < 0.3:
                for _ in range(1 + (size - synced) // 100):
                    self._spoil(path, synced, size)
                return
            os.truncate(path, synced + int(self._draws.integers(size - synced + 1)))
            if self._draws.random() < 0.5:
                os.truncate(path, size)

    def _turn_bit(self) -> None:
        """Turn a bit of a trial's newest checkpoint, as an old disk may."""
        # Names of leases and steps sort as they follow each other.
        published = sorted(Path(self._folder).glob("checkpoints/*/lease-*/step-*"))
        newest = list({path.parents[1]: path for path in published if path.is_dir()}.values())
        if newest:
            folder = newest[int(self._draws.integers(len(newest)))]
            files = sorted(path for path in folder.iterdir() if path.stat().st_size)
            path = str(files[int(self._draws.integers(len(files)))])
            self._spoil(path, 0, self._size_of(path))

    def _spoil(self, path: str, start: int, stop: int) -> None:
        """Turn the lowest bit of one byte: a digit becomes another digit, which only a checksum can see."""
        place = start + int(self._draws.integers(stop - start))
        with open(path, "r+b", opener=self._real[os, "open"]) as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))

    def _size_of(self, path: str) -> int:
        """Return the bytes of a file, -1 if it is gone."""
        try:
            return int(self._real[os, "stat"](path).st_size)
        except OSError:
            return -1

    # What the real code calls.

    def __enter__(self) -> Self:
        seams: dict[tuple[ModuleType, str], Callable[..., Any]] = {
            (os, "open"): self._open,
            (os, "write"): self._write,
            (os, "fsync"): self._sync,
            (os, "fdatasync"): self._sync,
            (os, "close"): self._close,
            (os, "link"): self._link,
            (os, "stat"): self._stat,
            (os, "listdir"): self._list,
            (io, "open"): self._open_text,
            (time, "time"): lambda: self._start + self.now + self._here.process.clock_offset,
            (time, "monotonic"): lambda: self.now,
            (time, "perf_counter"): lambda: self.now,
            (time, "sleep"): self._sleep,
            (secrets, "token_hex"): lambda size=16: self._draws.bytes(size).hex(),
            (secrets, "randbelow"): lambda most: int(self._draws.integers(most)),
            (manager, "capture_fingerprint"): _capture_once,
            (run_assignment, "seed_all"): lambda *_: None,  # no training here draws
        }
        for name in ("rename", "replace", "unlink", "pread", "mkdir", "readlink"):
            seams[os, name] = self._plain(getattr(os, name))
        self._real = {place: getattr(*place) for place in seams}
        for (module, name), simulated in seams.items():
            setattr(module, name, self._divert(simulated, self._real[module, name], on_files=module in {os, io}))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()
        for (module, name), real in self._real.items():
            setattr(module, name, real)

    def _divert(self, simulated: Callable[..., Any], real: Callable[..., Any], *, on_files: bool) -> Callable[..., Any]:
        """Return a function that is the simulated one in threads of simulated processes, on files of theirs."""
        here = self._here

        def either(*arguments: Any, **settings: Any) -> Any:
            process: SimulatedProcess | None = getattr(here, "process", None)
            if process is None or (on_files and not self._is_ours(process, arguments[0])):
                return real(*arguments, **settings)
            return simulated(*arguments, **settings)

        return either

    def _is_ours(self, process: SimulatedProcess, place: Any) -> bool:
        """Whether a path or an open file belongs to the history, and not to Python's own modules."""
        if isinstance(place, int):
            return place in process.paths
        text = os.fspath(place)
        if text in {"/proc/self", "/proc/self/ns/pid"}:
            # Nobody can look at the process behind a writer: heartbeats tell, as between hosts.
            raise OSError(errno.ENOENT, "no such file", text)
        return isinstance(text, str) and text.startswith(self._folder)

    def _plain(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return an operation that may only be the last of a process."""

        def operate(*arguments: Any, **settings: Any) -> Any:
            self._operate(self._here.process)
            # What is renamed over something else keeps its name: one of the two contents is there either way.
            target = str(arguments[1 if real in _RENAMES else 0])
            new = real in {*_RENAMES, _MAKE} and self._size_of(target) < 0
            found = real(*arguments, **settings)
            if new:
                self._note_name(target, before=str(arguments[0]) if real in _RENAMES else None)
            return found

        return operate

    def _open(self, path: Any, flags: int, mode: int = 0o777, **settings: Any) -> int:
        process = self._here.process
        if self._operate(process, *(["space"] if flags & os.O_CREAT else [])) == "space":
            raise OSError(errno.ENOSPC, "no space left on device", str(path))
        new = flags & os.O_CREAT and self._size_of(path) < 0
        handle: int = self._real[os, "open"](path, flags, mode, **settings)
        process.paths[handle] = str(path)
        if new:
            self._note_name(path)
        if flags & os.O_CREAT:
            process.synced[str(path)] = 0, self.now
            self._stamp(process, str(path))
            self._stamp(process, str(Path(path).parent))
        return handle

    def _write(self, handle: int, data: Any) -> int:
        process, write = self._here.process, self._real[os, "write"]
        path = process.paths[handle]
        fault = self._operate(process, "space", "torn", "write")
        if path in process.synced and self.now - process.synced[path][1] >= _WRITE_BACK_SECONDS:
            process.synced[path] = self._size_of(path), self.now
        if fault not in {"space", "torn", "write"}:
            done = write(handle, data)
        elif fault == "write":
            raise OSError(errno.EIO, "input/output error", path)
        else:
            # A part of it; then there is no space, or the process is killed.
            done = write(handle, memoryview(data)[: int(self._draws.integers(len(data)))]) if len(data) else 0
            if fault == "torn":
                process.dead = True
                raise Killed
        self._stamp(process, path)
        return int(done)

    def _sync(self, handle: int) -> None:
        process = self._here.process
        path = process.paths[handle]
        if self._operate(process, *(["sync"] if path in process.synced else [])) == "sync":
            # The pages are dropped, and a further sync would say that all is well.
            process.sync_failed = True
            self._lose_unsynced(process, path)
            raise OSError(errno.EIO, "input/output error", path)
        self._names.pop(path, None)
        if path in process.synced:
            process.synced[path] = os.fstat(handle).st_size, self.now

    def _close(self, handle: int) -> None:
        process = self._here.process
        process.paths.pop(handle, None)
        self._real[os, "close"](handle)
        if process.dead:
            raise Killed

    def _link(self, source: Any, target: Any, **settings: Any) -> None:
        fault = self._operate(self._here.process, "link")
        self._real[os, "link"](source, target, **settings)
        self._note_name(target)
        if fault == "link":
            raise FileExistsError(errno.EEXIST, "file exists", str(target))

    def _stat(self, path: Any, **settings: Any) -> os.stat_result:
        """Return what is known of a file; a stale answer has the size of half a minute before."""
        process = self._here.process
        name = str(path)
        others = name.endswith(".jsonl") and name not in process.synced
        fault = self._operate(process, *(["stale"] if others else []))
        found: os.stat_result = self._real[os, "stat"](path, **settings)
        if not others:
            return found
        until, size = process.sizes.get(name, (0.0, found.st_size))
        if fault == "stale":
            # Pages come one by one: the end that is seen may lie within a line.
            size = int(self._draws.integers(size // 2, size + 1))
            process.sizes[name] = self.now + _STALE_SECONDS, size
        elif self.now >= until:
            process.sizes[name] = 0.0, found.st_size
            return found
        return os.stat_result((*found[:6], min(size, found.st_size), *found[7:10]), {"st_mtime": found.st_mtime})

    def _list(self, path: Any) -> list[str]:
        """Return the names in a folder; a stale answer lacks those that others made since the last one."""
        process = self._here.process
        others = str(path).endswith("journal")
        fault = self._operate(process, *(["stale"] if others else []))
        found: list[str] = sorted(self._real[os, "listdir"](path))
        until, known = process.listings.get(str(path), (0.0, []))
        if fault == "stale":
            until = self.now + _STALE_SECONDS
        if self.now < until:
            found = [name for name in found if name in known or f"{path}/{name}" in process.synced]
        process.listings[str(path)] = until, found
        return found

    def _open_text(self, path: Any, mode: str = "r", *arguments: Any, **settings: Any) -> Any:
        if self._operate(self._here.process, *(["space"] if mode[:1] in "wxa" else [])) == "space":
            raise OSError(errno.ENOSPC, "no space left on device", str(path))
        if mode[:1] in "wxa" and self._size_of(path) < 0:
            self._note_name(path)
        return builtins.open(path, mode, *arguments, **settings)  # noqa: PTH123 -- this is the seam

    def _stamp(self, process: SimulatedProcess, path: str) -> None:
        """Give a file the time of the file system's clock, which is nobody's own."""
        if not process.dead and self._size_of(path) >= 0:
            os.utime(path, (self._start + self.now, self._start + self.now))
