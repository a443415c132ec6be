"""Finds this process's rank among those that a launcher started, and initialises the process group that they form."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from trainwright.errors import InputError
from trainwright.validators import check, one_of, optional

__all__ = ["LAUNCHERS", "RankPlace", "find_rank_place", "join_process_group"]

_PORT = 29500
_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """One process among those of a job, `on_node` of them on each node; on_node divides world."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    on_node: int = 1
    address: str = ""

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.world // self.on_node


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Environment variables in which a launcher passes the rank (the first that is set counts), and its command."""

    rank: tuple[str, ...]
    world: tuple[str, ...]
    local_rank: tuple[str, ...]
    on_node: tuple[str, ...]
    start: str


_COMMAND = "trainwright plan calibrate"
_LAUNCHERS: Mapping[str, _Launcher] = MappingProxyType({
    "torchrun": _Launcher(
        ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",),
        "torchrun --nproc-per-node N -m " + _COMMAND,
    ),
    "slurm": _Launcher(
        ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"), "srun --ntasks-per-node N " + _COMMAND,
    ),
    "mpi": _Launcher(
        ("OMPI_COMM_WORLD_RANK", "PMI_RANK"), ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
        "mpirun -n N " + _COMMAND,
    ),
})  # fmt: skip
LAUNCHERS = tuple(_LAUNCHERS)


def find_rank_place(launcher: str | None = None, environment: Mapping[str, str] = os.environ) -> RankPlace:
    """Return the rank of this process; without a launcher that of torchrun if its variables are set, else a single one.

    Raises `InputError` if the launcher is unknown, did not start this process, or did so unevenly.
    """
    check(launcher, optional(one_of(*LAUNCHERS)), "launch")
    if launcher is None and not {"RANK", "WORLD_SIZE"} <= set(environment):
        return RankPlace()
    name = launcher or "torchrun"
    known = _LAUNCHERS[name]
    rank, world, local_rank, on_node = (
        _read_number(name, known, names, environment)
        for names in (known.rank, known.world, known.local_rank, known.on_node)
    )
    # Ranks must be numbered node by node and evenly, because group sizes are derived from that.
    if not 0 <= rank < world or not 1 <= on_node <= world or world % on_node or local_rank != rank % on_node:
        raise InputError(
            f"launch {name}: got rank {rank} of {world}, {local_rank} of {on_node} on its node; allowed: as many "
            "processes on every node, numbered node by node"
        )
    return RankPlace(
        rank=rank,
        world=world,
        local_rank=local_rank,
        on_node=on_node,
        address=_main_address(world, on_node, environment),
    )


@contextmanager
def join_process_group(here: RankPlace, backend: str) -> Iterator[None]:
    """Form a process group of all ranks by `backend` ("gloo" or "nccl"), for as long as the block runs."""
    import torch.distributed as dist

    # torchrun has a store of its own; other launchers need an address that all ranks agree on.
    port = os.environ.get("MASTER_PORT", str(_PORT))
    dist.init_process_group(
        backend,
        init_method="env://" if "TORCHELASTIC_RUN_ID" in os.environ else f"tcp://{here.address}:{port}",
        rank=here.rank,
        world_size=here.world,
        timeout=_TIMEOUT,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _read_number(name: str, known: _Launcher, names: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Return the number with which the first of these variables that is set begins: Slurm writes 4(x2) for 4, 4."""
    text = next((environment[each] for each in names if each in environment), None)
    found = re.match(r"\d+", text or "")
    if found is None:
        raise InputError(f"launch {name}: {names[0]} is {text!r}; allowed: a number; start it as {known.start}")
    return int(found[0])


def _main_address(world: int, on_node: int, environment: Mapping[str, str]) -> str:
    """Return the host of rank 0: MASTER_ADDR, this one if there is no other, or the first of Slurm's list of nodes."""
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    if world == on_node:
        return "127.0.0.1"
    # The first name of a Slurm list such as node[3-7] is node3.
    nodes = re.match(r"([^\[,]+)(?:\[(\d+))?", environment.get("SLURM_STEP_NODELIST", ""))
    if nodes is None:
        raise InputError("launch: MASTER_ADDR is not set; allowed: the name of the host on which rank 0 runs")
    return nodes[1] + (nodes[2] or "")
