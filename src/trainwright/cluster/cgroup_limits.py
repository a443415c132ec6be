"""Reads the CPU and memory limits of a container or batch job on this process from its Linux control groups (cgroups).

Both versions of control groups are read (v2: Documentation/admin-guide/cgroup-v2.rst of the kernel; v1:
cgroup-v1/memory.rst and scheduler/sched-bwc.rst). A limit of any enclosing group counts, so the least is taken.
"""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cgroup_cores", "cgroup_memory_bytes", "host_memory_bytes"]

_GROUPS = "sys/fs/cgroup"
_UNLIMITED_BYTES = 1 << 60  # version 1 writes nearly 2^63 where there is no limit


def cgroup_cores(root: Path = Path("/")) -> float | None:
    """Return how many processors control groups allow, which may be a fraction; None without a limit."""
    found = []
    for folder in _group_folders(root, "cpu"):
        # Version 2 has quota and period in one file, version 1 in two; "max" and -1 mean no limit.
        whole = _read_words(folder / "cpu.max") or _read_words(folder / "cpu.cfs_quota_us") + _read_words(
            folder / "cpu.cfs_period_us"
        )
        if len(whole) == 2 and whole[0].isdigit() and whole[1].isdigit() and int(whole[1]):
            found.append(int(whole[0]) / int(whole[1]))
    return min(found, default=None)


def cgroup_memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that control groups allow; None without a limit."""
    found = []
    for folder in _group_folders(root, "memory"):
        words = _read_words(folder / "memory.max") or _read_words(folder / "memory.limit_in_bytes")
        if words and words[0].isdigit() and int(words[0]) < _UNLIMITED_BYTES:
            found.append(int(words[0]))
    return min(found, default=None)


def host_memory_bytes() -> int:
    """Return the bytes of memory that this process may use, 0 if the system does not say."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    # A container sees the memory of the whole machine, and may use less of it.
    limit = cgroup_memory_bytes()
    return found if limit is None else min(found, limit)


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups and of the enclosing ones; a container may see only the topmost."""
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        # Version 1 has a hierarchy for each controller, version 2 a single one without names.
        if names and controller not in names.split(","):
            continue
        mounts = [root / _GROUPS / names, root / _GROUPS / controller] if names else [root / _GROUPS]
        # From the process's own group up to the root: the tightest limit on the way counts.
        parts = [part for part in path.split("/") if part not in {"", ".."}]
        for mount in mounts:
            yield from (mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _read_words(path: Path) -> list[str]:
    return _read_text(path).split()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
