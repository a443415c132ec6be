"""Read rank and local rank from the environment variables of launchers (srun, mpirun, ...); no MPI is imported."""

import os
import re
from collections.abc import Mapping

__all__ = ["local_rank", "local_size", "rank"]

_RANK = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LOCAL_RANK = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
_LOCAL_SIZE = ("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")


def rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of this process among those started together; None without a launcher."""
    return _first_number(_RANK, environment)


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return its number among those on this host; None if nothing tells it."""
    return _first_number(_LOCAL_RANK, environment)


def local_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many of them run on this host; 1 if nothing tells it."""
    return _first_number(_LOCAL_SIZE, environment) or 1


def _first_number(names: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    """Return the number with which the first of these variables starts that is set: Slurm writes "4(x2)" for 4, 4."""
    found = (re.match(r"\d+", environment.get(name, "")) for name in names)
    return next((int(number[0]) for number in found if number is not None), None)
