"""Calibrates a cluster: runs all measurements in one process or on every rank of a launcher; rank 0 returns it."""

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from trainwright.cluster.calibration import compute
from trainwright.cluster.calibration.compute import measure_storage
from trainwright.cluster.calibration.fit_cluster import MeasuredLevel, fit_fields
from trainwright.cluster.calibration.links import measure_links, measure_overlap, measure_runtime
from trainwright.cluster.calibration.ranks import RankPlace, join_process_group
from trainwright.cluster.cluster import Cluster
from trainwright.cluster.visible_devices import host_memory_bytes
from trainwright.errors import InputError
from trainwright.validators import check, integer, one_of

__all__ = ["calibrate"]

Row = tuple[float, float]
Say = Callable[[str], None]


def calibrate(
    here: RankPlace,
    *,
    devices: str = "cpu",
    name: str = "calibrated",
    folder: Path | None = None,
    repeats: int = 25,
    largest: int = 64 * 2**20,
    file_bytes: int = 256 * 2**20,
    say: Say = lambda _: None,
) -> Cluster | None:
    """Measure this machine and return it as a cluster, on rank 0; None on the others. Every rank must call it.

    Compute and memory are measured on all ranks at the same time, as in a training, and the slowest rank counts. Links
    and overlap need at least two ranks; storage is measured in `folder`, if one is given. With `devices` "cpu" the
    ranks share processors: the times hold only for the measured sizes of groups, and torch's own code is measured
    too. Rank 0 calls `say` with the next phase.
    """
    check(devices, one_of("cpu", "cuda"), "devices")
    if devices == "cuda" and torch.cuda.device_count() < here.on_node:
        raise InputError(
            f"devices: got cuda with {here.on_node} ranks a node; allowed: cpu, or as many ranks as the node has GPUs: "
            f"{torch.cuda.device_count()}"
        )
    check(repeats, integer(minimum=2), "repeats")  # errors come from the differences of repeats
    device = torch.device("cpu") if devices == "cpu" else torch.device("cuda", here.local_rank)
    if devices == "cuda":
        torch.cuda.set_device(device)
    tell = say if here.rank == 0 else lambda _: None
    with join_process_group(here, "gloo" if devices == "cpu" else "nccl") if here.world > 1 else nullcontext():
        found = _measure_all(here, device, folder, tell, repeats=repeats, largest=largest, file_bytes=file_bytes)
    return Cluster(**fit_fields(name=name, **found)) if here.rank == 0 else None


def _measure_all(
    here: RankPlace, device: torch.device, folder: Path | None, say: Say, *, repeats: int, largest: int, file_bytes: int
) -> dict[str, Any]:
    """Return what `fit_fields` takes."""
    timer = compute.Timer(device, repeats=repeats)
    load = os.getloadavg()[0]
    say("compute and memory")
    # A training step ends when its slowest rank is done: of each time the slowest rank's counts.
    products = {each: _take_slowest(here, compute.time_products(timer, each)) for each in compute.precisions_of(device)}
    convolutions = _take_slowest(here, compute.time_convolutions(timer))
    copies = _take_slowest(here, compute.time_copies(timer))
    host_copies = _take_slowest(here, compute.time_host_copies(timer))
    launch = _take_slowest(here, [(1.0, compute.time_launch(timer))])[0][1]
    if here.world > 1:
        say(f"exchanges between {here.world} ranks")
    # Links need at least two ranks, as does everything below.
    levels = measure_links(here, device, repeats=repeats, largest=largest) if here.world > 1 else ()
    memory = host_memory_bytes()
    if device.type == "cuda":
        memory = here.on_node * int(torch.cuda.get_device_properties(device).total_memory)
    found: dict[str, Any] = {}
    errors: dict[str, float] = {}
    if levels:
        found["overlap"], errors["overlap"] = measure_overlap(device, repeats=repeats)
    if levels and device.type == "cpu":  # the host of a GPU runs ahead of it
        say("steps and pipelines of torch, for a minute or two")
        # Only the exchanges of the outermost level: it joins all ranks, as a training does.
        found["pass_seconds"], found["runtime_seconds"], errors["framework"] = measure_runtime(
            levels[-1].exchanges, repeats=repeats
        )
    # One writer: several on one machine would share its disk.
    if folder is not None and here.rank == 0:
        say("storage")
        found["storage"], errors["storage"] = measure_storage(folder, size=file_bytes, repeats=min(repeats, 3))
    if here.world > 1:
        torch.distributed.barrier()
    return {
        **found,
        "source": "trainwright plan calibrate",
        "kind": _device_kind(device),
        "nodes": here.nodes,
        "devices_per_node": here.on_node,
        "memory_bytes": memory // here.on_node,
        "products": products,
        "convolutions": convolutions,
        "copies": copies,
        "host_copies": host_copies,
        "launch_seconds": launch,
        "levels": levels,
        "errors": errors,
        "conditions": _describe_conditions(device, load, repeats, levels),
    }


def _take_slowest(here: RankPlace, rows: list[Row]) -> list[Row]:
    """Return each time of the slowest rank."""
    if here.world == 1:
        return rows
    everyone: list[list[Row]] = [[] for _ in range(here.world)]
    torch.distributed.all_gather_object(everyone, rows)
    return [(ranks[0][0], max(seconds for _, seconds in ranks)) for ranks in zip(*everyone, strict=True)]


def _device_kind(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()}, {threads} thread{'s' * (threads > 1)}"


def _describe_conditions(
    device: torch.device, load: float, repeats: int, levels: Iterable[MeasuredLevel]
) -> Mapping[str, str]:
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "repeats": str(repeats),
        "load_before": f"{load:.2f}",
        "load_after": f"{os.getloadavg()[0]:.2f}",
    }
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
    if levels:
        found["backend"] = "gloo" if device.type == "cpu" else "nccl"
    return found
