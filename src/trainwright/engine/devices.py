"""What this machine offers to trials: processors and GPUs, found without loading torch."""

import os
from pathlib import Path

__all__ = ["cores", "visible_gpus"]


def cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> tuple[str, ...]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES would name them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(name for name in (part.strip() for part in given.split(",")) if name and name != "-1")
    return tuple(str(i) for i, _ in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*"))))
