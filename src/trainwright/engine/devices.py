"""Finds the CPU cores and GPUs that this process may use, and its rank, without loading torch or MPI.

Where a launcher started several processes on this host without binding each to its own devices, they share evenly.
"""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

from trainwright.cluster.cgroup_limits import cgroup_cores

__all__ = ["cores", "local_rank", "local_size", "rank", "task_count", "visible_gpus"]

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
