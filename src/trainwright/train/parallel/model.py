"""Parallel: the model that the ranks of a layout train together, and the device mesh of these ranks.

The mesh has one axis for each degree above 1, the first field of `Degrees` changing fastest.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainwright.errors import TrialError, UnsupportedPlan
from trainwright.plan import Degrees, Layout
from trainwright.train.batch_slicing import train_parts
from trainwright.train.parallel.recompute.budgeted import Budgeted

__all__ = ["Loss", "Parallel", "Setup", "data_place", "data_ranks", "mesh_of"]


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


def data_ranks(degrees: Degrees) -> int:
    """Return how many ranks get different samples: expert ranks do, as data ranks."""
    return degrees.expert * degrees.data


def data_place(degrees: Degrees) -> int:
    """Return this rank's place among those that get different samples."""
    names = [degree.name for degree in fields(degrees)]
    # Ranks of the axes before these two, which are neighbours, share their samples.
    inner = prod(getattr(degrees, name) for name in names[: names.index("expert")])
    return dist.get_rank() // inner % data_ranks(degrees) if degrees.devices > 1 else 0


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


Loss = Callable[[nn.Module, Any], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a strategy makes of a model."""

    module: nn.Module
    """The model with its parameters as this rank has them, under the user's names."""
    call: Callable[..., Any]
    """The forward pass; backward through what it returns leaves the gradient of the whole batch, or its part."""
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext
    """A context in which gradients only accumulate."""
    backward: Callable[[Loss, Any], torch.Tensor] | None = None
    """Forward and backward pass of a batch in one, where they cannot be told apart; its mean loss."""
    weigh: Callable[[Callable[[], float]], None] | None = None
    """Takes the weight of this rank's gradients in their sum; None: all ranks count alike."""
    watch: Callable[[list[torch.Tensor] | None], None] | None = None
    """Takes a list for the squares of this rank's gradients before they are summed; None: no more of them."""
    finish: Callable[[], None] | None = None
    """What follows the backward pass of a batch."""
    budget: Budgeted | None = None
    """What keeps the forward pass to a memory budget."""


class Parallel(nn.Module):
    """A model set up for a layout: called, trained and evaluated like the model itself.

    Each rank gives its samples: those of its place `data_rank` among `data_ranks`; ranks of one place give the same.
    After `backward()` every parameter has the gradient of the mean over the whole batch, or this rank's part of it.
    """

    def __init__(self, setup: Setup, plan: Layout, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.module = setup.module
        self.plan = plan
        self.mesh = mesh
        self.data_rank = data_place(plan.degrees)
        self.data_ranks = data_ranks(plan.degrees)
        self._setup = setup
        self._share: Callable[[], float] = lambda: 1 / self.data_ranks

    @property
    def memory_plan(self) -> Any:
        """How the model keeps to its memory budget; None without one, before its first batch, and in pipelines."""
        return None if self._setup.budget is None else self._setup.budget.plan

    def expect_accumulation(self, accumulate: bool) -> None:
        """Let the next plan of a memory budget be for gradients that add up over micro-batches."""
        if self._setup.budget is not None:
            self._setup.budget.expect(None, accumulate=accumulate)

    def share_batches(self, share: Callable[[], float]) -> None:
        """Let `share` say which part of the global batch this rank's batch is; by default all are equal."""
        self._share = share
        if self._setup.weigh is not None:
            # DDP's hook is held where the collector of cycles does not look: the hook must not hold DDP.
            held: Any = weakref.proxy(self)
            self._setup.weigh(partial(Parallel._weight, held))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, whole."""
        return self._setup.call(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[Any]:
        """Let gradients of micro-batches add up; those of the first backward pass outside are exchanged."""
        return self._setup.alone()

    def watch_local(self, squares: list[torch.Tensor] | None) -> None:
        """Let the squares of this rank's own gradients be added to a list, in steps to come; None: no more."""
        if self._setup.watch is not None:
            self._setup.watch(squares)

    def backward(
        self, loss: Loss, parts: list[tuple[float, Any]], after_first: Callable[[], None] | None = None
    ) -> torch.Tensor:
        """Leave the gradient of a batch, given in micro-batches with their weights; return its mean loss, detached.

        `after_first` is called when that of the first micro-batch is there, if there are others.
        """
        if self._setup.weigh is None and abs(self._share() * self.data_ranks - 1) > 1e-9:
            raise TrialError(
                f"prepare: a batch cannot be shared evenly by {self.data_ranks} data parallel ranks of the plan; give "
                "the loader drop_last=True"
            )
        if self._setup.backward is not None:
            if len(parts) > 1:
                raise UnsupportedPlan.of(self.plan.strategy, "micro-batches are the plan's; give one part, the batch")
            return self._mean(self._setup.backward(loss, parts[0][1]))
        # A loss is given the model itself where nothing surrounds its forward pass.
        called = self.module if self._setup.call is self.module else self
        budget = self._setup.budget

        def expect(part: Any) -> None:
            if budget is not None:
                wanted = None if part is None else partial(_loss_on, loss, part, _autocast(self.module))
                budget.expect(wanted, accumulate=len(parts) > 1)

        # Gradients are exchanged with the last micro-batch; until then they only add up.
        total = train_parts(called, loss, parts, alone=self.no_sync, expect=expect, after_first=after_first)
        if self._setup.finish is not None:
            self._setup.finish()
        return self._mean(total)

    def _weight(self) -> float:
        """Return the weight of this rank in a sum over all ranks, of which those of one place have the same batch."""
        return self._share() * self.data_ranks / self.plan.devices

    def _mean(self, value: Any) -> torch.Tensor:
        if self.plan.devices > 1:
            value = value * self._weight()
            dist.all_reduce(value)
        return value  # type: ignore[no-any-return]


def _autocast(module: nn.Module) -> AbstractContextManager[Any]:
    """Return what a loss is computed in: a layout's precision is that of the model's forward pass alone."""
    kind = next((each.device.type for each in module.parameters()), "cpu")
    return torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))


def _loss_on(loss: Loss, batch: Any, surroundings: AbstractContextManager[Any], model: nn.Module) -> torch.Tensor:
    with surroundings:
        return loss(model, batch)
