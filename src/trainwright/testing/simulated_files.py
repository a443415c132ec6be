"""The files of a simulated machine: what the real code asks of `os` and `io`, with the faults of a file system.

They lie in a folder of the real system. What was written is lost with the power unless it was synced, or so old that
the system had written it back by itself; and so are the names that a folder got.
"""

# ruff: noqa: PTH104, PTH108, PTH112, PTH119, PTH120 -- paths are texts here, as the seams get them

import errno
import io
import os
import random
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Killed", "SimulatedFiles", "SimulatedProcess", "taken_lock"]

_WRITE_BACK_SECONDS = 30.0  # after which a system writes pages by itself
_STALE_SECONDS = 30.0
_BEGINNING = 1.8e9  # the time of the clocks at first

# As they are while no history runs.
_real_open, _real_close, _real_pread, _real_write = os.open, os.close, os.pread, os.write
_real_stat, _real_listdir, _real_readlink, _real_mkdir = os.stat, os.listdir, os.readlink, os.mkdir
_real_link, _real_unlink, _real_replace, _real_open_text = os.link, os.unlink, os.replace, io.open


class Killed(BaseException):
    """Ends the thread of a process that was killed: raised by whatever it does from then on."""


def taken_lock() -> threading.Lock:
    """Return a lock to wait at."""
    lock = threading.Lock()
    lock.acquire()
    return lock


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
    go: threading.Lock = field(default_factory=taken_lock)
    thread: int = 0
    paths: dict[int, str] = field(default_factory=dict)
    synced: dict[str, tuple[int, float]] = field(default_factory=dict)
    sizes: dict[str, tuple[float, int]] = field(default_factory=dict)
    listings: dict[str, tuple[float, list[str]]] = field(default_factory=dict)


class SimulatedFiles(ABC):
    """The seams of `os` and `io` for the files of a folder, and what faults leave of those."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.folder = str(folder)
        self.draws = random.Random(seed)
        self.now = _BEGINNING
        self.running = SimulatedProcess(name="none", wakes_at=0.0)
        """Whose turn it is."""
        # By folder: names that it got since it was synced, when, and what they were before a rename.
        self._names: dict[str, list[tuple[float, str, str | None]]] = {}

    @abstractmethod
    def operate(self, *kinds: str) -> str:
        """Count an operation, which faults of these kinds may strike; return the one that does."""

    def operations_of_os(self) -> dict[str, Callable[..., Any]]:
        """Return what stands for the functions of `os` that get a path or an open file."""
        return {
            "open": self._open, "link": self._link, "stat": self._stat, "listdir": self._list, "mkdir": self._make,
            "unlink": self._unlink, "rename": self._rename, "replace": self._rename, "pread": self._read,
            "write": self._write, "close": self._close, "fsync": self._sync, "fdatasync": self._sync,
        }  # fmt: skip

    # What faults leave.

    def lose_names(self) -> None:
        """Lose what folders got last and did not sync."""
        for folder, names in sorted(self._names.items()):
            recent = [each for each in names if self.now - each[0] < _WRITE_BACK_SECONDS]
            for _, path, before in reversed(recent[self.draws.randrange(len(recent) + 1) :]):
                if before is not None and os.path.lexists(path):
                    os.rename(path, before)
                elif os.path.isdir(path):
                    shutil.rmtree(path)
                elif os.path.lexists(path):
                    os.unlink(path)
            self._names[folder] = []

    def _note_name(self, path: Any, before: str | None = None) -> None:
        """Note that a folder has a new name, that of `before` until now or of nothing."""
        self._names.setdefault(os.path.dirname(path), []).append((self.now, str(path), before))

    def lose_unsynced(self, process: SimulatedProcess, path: str) -> None:
        """Cut what was written to a file and not synced, or leave zeros or other bytes there, as file systems may."""
        synced, since = process.synced[path]
        if (size := _size_of(path)) > synced and self.now - since < _WRITE_BACK_SECONDS:
            if self.draws.random() < 0.3:
                for _ in range(1 + (size - synced) // 100):
                    self._spoil(path, synced, size)
                return
            os.truncate(path, synced + self.draws.randrange(size - synced + 1))
            if self.draws.random() < 0.5:
                os.truncate(path, size)

    def _turn_bit(self) -> None:
        """Turn a bit of a trial's newest checkpoint, as an old disk may."""
        # Names of leases and steps sort as they follow each other.
        published = sorted(Path(self.folder).glob("checkpoints/*/lease-*/step-*"))
        newest = list({path.parents[1]: path for path in published}.values())
        with os.scandir(newest[self.draws.randrange(len(newest))]) as entries:
            files = sorted((entry.path, size) for entry in entries if (size := entry.stat().st_size))
        path, size = files[self.draws.randrange(len(files))]
        self._spoil(path, 0, size)

    def _spoil(self, path: str, start: int, stop: int) -> None:
        """Turn the lowest bit of one byte: a digit becomes another digit, which only a checksum can see."""
        place = start + self.draws.randrange(stop - start)
        with open(path, "r+b", opener=_real_open) as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))

    # What the real code calls.

    def _unlink(self, path: str, **settings: Any) -> None:
        self.operate()
        _real_unlink(path, **settings)

    def _make(self, path: str, *arguments: Any, **settings: Any) -> None:
        self.operate()
        _real_mkdir(path, *arguments, **settings)
        self._note_name(path)

    def _rename(self, source: str, target: Any, **settings: Any) -> None:
        fault = self.operate("rot" if os.path.basename(target).startswith("step-") else "")
        # What is renamed over something else keeps its name: one of the two contents is there either way.
        new = _size_of(target) < 0
        _real_replace(source, target, **settings)
        if new:
            self._note_name(str(target), before=source)
        if fault == "rot":
            # Who comes next wants a checkpoint that has just been published.
            self._turn_bit()
            self.running.dead = True
            raise Killed

    def read_link(self, path: Any, **settings: Any) -> str:
        """Return where a link leads."""
        if path in {"/proc/self", "/proc/self/ns/pid"}:
            # Nobody can look at the process behind a writer: heartbeats tell, as between hosts.
            raise OSError(errno.ENOENT, "no such file", path)
        return str(_real_readlink(path, **settings))

    def _open(self, path: str, flags: int, mode: int = 0o777, **settings: Any) -> int:
        creates = flags & os.O_CREAT
        if self.operate("space" if creates else "") == "space":
            raise OSError(errno.ENOSPC, "no space left on device", path)
        if creates and _size_of(path) < 0:
            self._note_name(path)
        handle = _real_open(path, flags, mode, **settings)
        self.running.paths[handle] = path
        if creates:
            self.running.synced[path] = 0, self.now
            self._stamp(handle)
            self._stamp(os.path.dirname(path))
        return handle

    def _read(self, handle: int, size: int, start: int) -> bytes:
        self.operate()
        return _real_pread(handle, size, start)

    def _write(self, handle: int, data: Any) -> int:
        process = self.running
        path = process.paths[handle]
        fault = self.operate("space", "torn", "write")
        if path in process.synced and self.now - process.synced[path][1] >= _WRITE_BACK_SECONDS:
            process.synced[path] = _size_of(path), self.now
        if fault == "write":
            raise OSError(errno.EIO, "input/output error", path)
        if fault in {"space", "torn"}:
            # A part of it; then there is no space, or the process is killed.
            data = memoryview(data)[: self.draws.randrange(len(data) or 1)]
        done = _real_write(handle, data)
        if fault == "torn":
            process.dead = True
            raise Killed
        self._stamp(handle)
        return done

    def _sync(self, handle: int) -> None:
        process = self.running
        path = process.paths[handle]
        if self.operate("sync" if path in process.synced else "") == "sync":
            # The pages are dropped, and a further sync would say that all is well.
            process.sync_failed = True
            self.lose_unsynced(process, path)
            raise OSError(errno.EIO, "input/output error", path)
        self._names.pop(path, None)
        if path in process.synced:
            process.synced[path] = os.fstat(handle).st_size, self.now

    def _close(self, handle: int) -> None:
        process = self.running
        process.paths.pop(handle)
        _real_close(handle)
        if process.dead:
            raise Killed

    def _link(self, source: str, target: Any, **settings: Any) -> None:
        fault = self.operate("link")
        _real_link(source, target, **settings)
        self._note_name(str(target))
        if fault == "link":
            raise FileExistsError(errno.EEXIST, "file exists", str(target))

    def _stat(self, path: str, **settings: Any) -> os.stat_result:
        """Return what is known of a file; a stale answer has the size of half a minute before."""
        process = self.running
        others = path.endswith(".jsonl") and path not in process.synced
        fault = self.operate("stale" if others else "")
        found = _real_stat(path, **settings)
        if not others:
            return found
        until, size = process.sizes.get(path, (0.0, 0))
        if fault == "stale":
            # Pages come one by one: the end that is seen may lie within a line.
            size = self.draws.randrange(size // 2, size + 1)
            process.sizes[path] = self.now + _STALE_SECONDS, size
        elif self.now >= until:
            return found
        return os.stat_result((*found[:6], min(size, found.st_size), *found[7:10]), {"st_mtime": found.st_mtime})

    def _list(self, path: str) -> list[str]:
        """Return the names in a folder; a stale answer lacks those that others made since the last one."""
        process = self.running
        fault = self.operate("stale" if path.endswith("journal") else "")
        found = sorted(_real_listdir(path))
        until, known = process.listings.get(path, (0.0, []))
        if fault == "stale":
            until = self.now + _STALE_SECONDS
        if self.now < until:
            found = [name for name in found if name in known or f"{path}/{name}" in process.synced]
        process.listings[path] = until, found
        return found

    def open_text(self, path: str, mode: str = "r", *arguments: Any, **settings: Any) -> Any:
        """Open as `io.open` does; what is written there is no operation, and not lost but with the file's name."""
        writes = mode[:1] in "wxa"
        if self.operate("space" if writes else "") == "space":
            raise OSError(errno.ENOSPC, "no space left on device", path)
        if writes and _size_of(path) < 0:
            self._note_name(path)
        return _real_open_text(path, mode, *arguments, **settings)

    def _stamp(self, place: str | int) -> None:
        """Give a file the time of the file system's clock, which is nobody's own."""
        os.utime(place, (self.now, self.now))


def _size_of(path: Any) -> int:
    """Return the bytes of a file, -1 if it is gone."""
    try:
        return _real_stat(path).st_size
    except OSError:
        return -1
