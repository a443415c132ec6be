"""Finds what of this machine this process may use: processors, memory and GPUs, and its rank; without torch or MPI.

Where a launcher started several processes on this host without binding each to its own devices, they share evenly. The
limits of a container or batch job on processors and memory are those of its Linux control groups (cgroups).

Both versions of control groups are read (v2: Documentation/admin-guide/cgroup-v2.rst of the kernel; v1:
cgroup-v1/memory.rst and scheduler/sched-bwc.rst). A limit of any enclosing group counts, so the least is taken.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["cgroup_cores", "cores", "host_memory_bytes", "rank", "task_count", "visible_gpus"]

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


_RANK = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LOCAL_RANK = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
_SIZE = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "PMI_SIZE")
_LOCAL_SIZE = ("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")


def cores() -> int:
    """Return the number of processors that this process may use: bound to, or granted by a container's limit."""
    whole = os.cpu_count() or 1
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else whole
    # A launcher that binds has divided them; otherwise its processes on this host share.
    mine = bound if bound < whole else max(1, bound // local_size())
    granted = cgroup_cores()
    return mine if granted is None else min(mine, max(1, math.floor(granted)))


def visible_gpus() -> tuple[str, ...]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES would name them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        found = tuple(name for name in (part.strip() for part in named.split(",")) if name and name != "-1")
    else:
        found = tuple(str(i) for i, _ in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*"))))
    place, size = local_rank(), local_size()
    # With fewer GPUs than processes each of them sees them all.
    if place is None or len(found) < size or os.environ.get("SLURM_GPUS_PER_TASK"):
        # Alone here, or bound to its own already.
        return found
    return found[place % size :: size]


def rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of this process among those started together; None without a launcher."""
    return _first_number(_RANK, environment)


def task_count(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return how many processes were started together; None without a launcher."""
    return _first_number(_SIZE, environment)


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return its number among those on this host; None if nothing tells it."""
    return _first_number(_LOCAL_RANK, environment)


def local_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many of them run on this host; 1 if nothing tells it."""
    return _first_number(_LOCAL_SIZE, environment) or 1


def _first_number(names: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    """Return the number with which the first of these variables starts that is set: Slurm writes "4(x2)" for 4, 4."""
    # Launchers are asked in a fixed order; the first that set its variable counts.
    found = (re.match(r"\d+", environment.get(name, "")) for name in names)
    return next((int(number[0]) for number in found if number is not None), None)
