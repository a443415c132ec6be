"""The machine that is examined: its files, commands, packages and limits, each of which a test can replace."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Machine"]


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


def _run_command(command: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """Run a command for at most so many seconds; return its status, None if it did not end, and its output."""
    try:
        done = subprocess.run(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    return done.returncode, done.stdout


def _measure_space(path: Path) -> tuple[int, int] | None:
    """Return the bytes of a path's file system and how many of them are free, None if it cannot be told."""
    try:
        found = shutil.disk_usage(path)
    except OSError:
        return None
    return found.total, found.free


def _count_processors() -> tuple[int, int]:
    """Return how many processors this process is bound to, and how many there are."""
    whole = os.cpu_count() or 1
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else whole), whole


def _limit_open_files() -> int | None:
    """Return the soft limit of open files, None where there is none."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine and its Python; `root` is where /proc and /sys are found."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: tuple[int, int, int] = sys.version_info[:3]
    version: Callable[[str], str | None] = _find_version  # of an installed package
    requirements: Callable[[], tuple[str, ...]] = _read_requirements  # of Trainwright, as PEP 508 writes them
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[Sequence[str], float], tuple[int | None, str]] = _run_command  # a command and its seconds
    room: Callable[[Path], tuple[int, int] | None] = _measure_space  # bytes, and free ones
    processors: Callable[[], tuple[int, int]] = _count_processors  # bound to, and there
    open_files: Callable[[], int | None] = _limit_open_files

    def text(self, path: str) -> str:
        """Return a file below `root`, or "" where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
