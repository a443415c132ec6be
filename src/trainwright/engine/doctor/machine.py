"""The machine that is examined: its files, commands, packages and limits, each of which a test can replace."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CommandResult", "FreeSpace", "Machine"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandResult:
    """What a command said and how it ended; status None: it did not end in time, or could not be started."""

    status: int | None
    out: str
    err: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FreeSpace:
    """The bytes of a file system, and how many more files it takes (None: it does not say)."""

    total_bytes: int
    free_bytes: int
    free_files: int | None = None


def _find_version(package: str) -> str | None:
    """Return the version of an installed package, None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_requirements() -> tuple[str, ...]:
    """Return what Trainwright requires, as PEP 508 writes it."""
    try:
        return tuple(importlib.metadata.requires("trainwright") or ())
    except importlib.metadata.PackageNotFoundError:
        return ()


def _read_extras() -> frozenset[str]:
    """Return the names of Trainwright's extras."""
    try:
        return frozenset(importlib.metadata.metadata("trainwright").get_all("Provides-Extra") or ())
    except importlib.metadata.PackageNotFoundError:
        return frozenset()


def _run_command(command: Sequence[str], seconds: float) -> CommandResult:
    """Run a command for at most so many seconds."""
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, check=False, timeout=seconds)
    except (OSError, subprocess.SubprocessError) as error:
        return CommandResult(status=None, out="", err=str(error))
    return CommandResult(status=done.returncode, out=done.stdout, err=done.stderr)


def _measure_space(path: Path) -> FreeSpace | None:
    """Return the room of a path's file system, None if it cannot be told."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    files = found.f_favail if found.f_files else None
    return FreeSpace(
        total_bytes=found.f_blocks * found.f_frsize, free_bytes=found.f_bavail * found.f_frsize, free_files=files
    )


def _count_processors() -> tuple[int, int]:
    """Return how many processors this process is bound to, and how many there are."""
    whole = os.cpu_count() or 1
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else whole), whole


def _open_files() -> tuple[int, int] | None:
    """Return the soft and the hard limit of open files, None where there is none."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft, hard


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine and its Python; `root` is where /proc and /sys are found."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: tuple[int, int, int] = sys.version_info[:3]
    version: Callable[[str], str | None] = _find_version  # of an installed package
    requirements: Callable[[], tuple[str, ...]] = _read_requirements  # of Trainwright, as PEP 508 writes them
    extras: Callable[[], frozenset[str]] = _read_extras  # of Trainwright; one may need no package
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[Sequence[str], float], CommandResult] = _run_command  # a command and its seconds
    room: Callable[[Path], FreeSpace | None] = _measure_space
    processors: Callable[[], tuple[int, int]] = _count_processors  # bound to, and there
    open_files: Callable[[], tuple[int, int] | None] = _open_files  # soft and hard limit
    now: Callable[[], float] = time.time

    def text(self, path: str) -> str:
        """Return a file below `root`, or "" where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
