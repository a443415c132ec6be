"""What a server's processes take: processor time and memory of a process and all below it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["processor_seconds", "resident_bytes"]


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and those below it."""
    ticks = 0
    for folder in _family(pid):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process and those below it."""
    total = 0
    for folder in _family(pid):
        with contextlib.suppress(OSError):
            total += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def _family(pid: int) -> Iterator[Path]:
    """Yield the folders in /proc of a process and those below it."""
    waiting = [pid]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}")
        with contextlib.suppress(OSError):
            for task in (folder / "task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        yield folder
