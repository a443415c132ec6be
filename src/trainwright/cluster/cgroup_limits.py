"""What a container or a batch job leaves to a process: processors and memory, from its control groups.

Both versions of Linux's control groups are read (cgroup v2: Documentation/admin-guide/cgroup-v2.rst of the kernel; v1:
cgroup-v1/memory.rst and scheduler/sched-bwc.rst). A limit of any group above the process counts, so the least is taken.
"""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["granted_cores", "granted_memory_bytes"]

_GROUPS = "sys/fs/cgroup"
_UNLIMITED_BYTES = 1 << 60  # version 1 writes nearly 2^63 where there is no limit


def granted_cores(root: Path = Path("/")) -> float | None:
    """Return the processors' worth of time that control groups grant, which may be a fraction; None without a limit."""
    found = []
    for folder in _folders(root, "cpu"):
        whole = _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(whole) == 2 and whole[0].isdigit() and whole[1].isdigit() and int(whole[1]):
            found.append(int(whole[0]) / int(whole[1]))
    return min(found, default=None)


def granted_memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that control groups grant; None without a limit."""
    found = []
    for folder in _folders(root, "memory"):
        words = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        if words and words[0].isdigit() and int(words[0]) < _UNLIMITED_BYTES:
            found.append(int(words[0]))
    return min(found, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups and of those above them; a container may see only the topmost."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mounts = [root / _GROUPS / names, root / _GROUPS / controller] if names else [root / _GROUPS]
        parts = [part for part in path.split("/") if part not in {"", ".."}]
        for mount in mounts:
            yield from (mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
