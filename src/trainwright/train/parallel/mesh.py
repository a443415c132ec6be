"""The ranks of a plan as a mesh: one axis for each degree above 1, the first field of `Degrees` changing fastest."""

from dataclasses import fields
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainwright.errors import UnsupportedPlan
from trainwright.plan import Degrees, Layout

__all__ = ["data_place", "mesh_of"]


def mesh_of(plan: Layout, device_type: str) -> DeviceMesh | None:
    """Return the mesh of all ranks, None for one device.

    The data axis is "data", or "replica" and "shard" where state is divided over some of its ranks.

    Raises `UnsupportedPlan` if the process group has not as many ranks as the plan has devices.
    """
    if plan.devices == 1:
        return None
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if world != plan.devices:
        group = f"torch.distributed has {world} ranks" if world > 1 else "torch.distributed has no process group"
        raise UnsupportedPlan.of(
            plan.strategy, f"it is for {plan.devices} devices, but {group}; start one process for each device"
        )
    # Slowest axis first, as DeviceMesh counts ranks row by row.
    axes = [(name, size) for name, size in _axes_of(plan) if size > 1]
    mesh = init_device_mesh(
        device_type, tuple(size for _, size in axes), mesh_dim_names=tuple(name for name, _ in axes)
    )
    # Before its first point-to-point message NCCL wants all ranks of a group at one call.
    if device_type == "cuda":
        for name, _ in axes:
            dist.all_reduce(torch.zeros(1, device="cuda"), group=mesh.get_group(name))
    return mesh


def data_place(degrees: Degrees) -> int:
    """Return this rank's place among those that get different samples."""
    names = [degree.name for degree in fields(degrees)]
    # Ranks of the axes before data share their samples.
    inner = prod(getattr(degrees, name) for name in names[: names.index("data")])
    return dist.get_rank() // inner % degrees.data if degrees.devices > 1 else 0


def _axes_of(plan: Layout) -> list[tuple[str, int]]:
    """Return the axes, slowest first."""
    found: list[tuple[str, int]] = []
    for degree in reversed(fields(plan.degrees)):
        size = getattr(plan.degrees, degree.name)
        if degree.name == "data" and plan.zero and plan.shard < size:
            found += [("replica", size // plan.shard), ("shard", plan.shard)]
        else:
            found.append((degree.name, size))
    return found
