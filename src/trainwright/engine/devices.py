"""Find the processors and GPUs that this process may use, without loading torch.

Where a launcher started several processes on this host without binding each to its own devices, they share evenly.
"""

import math
import os
from pathlib import Path

from trainwright.cluster.cgroup_limits import cgroup_cores
from trainwright.engine.launcher import local_rank, local_size

__all__ = ["cores", "visible_gpus"]


def cores() -> int:
    """Return the number of processors that this process may use: bound to, or granted by a container's limit."""
    whole = os.cpu_count() or 1
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else whole
    mine = bound if bound < whole else max(1, bound // local_size())
    granted = cgroup_cores()
    return mine if granted is None else min(mine, max(1, math.floor(granted)))


def visible_gpus() -> tuple[str, ...]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES would name them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        found = tuple(name for name in (part.strip() for part in given.split(",")) if name and name != "-1")
    else:
        found = tuple(str(i) for i, _ in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*"))))
    rank, size = local_rank(), local_size()
    if rank is None or len(found) < size or os.environ.get("SLURM_GPUS_PER_TASK"):
        # Alone here, or bound to its own already.
        return found
    return found[rank % size :: size]
