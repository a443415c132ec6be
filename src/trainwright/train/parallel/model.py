"""Parallel: a model that the ranks of a plan train together."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trainwright.errors import UnsupportedPlan
from trainwright.plan import Layout
from trainwright.train.parallel.mesh import data_place

__all__ = ["Loss", "Parallel", "Setup"]

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


class Parallel(nn.Module):
    """A model set up for a plan: called, trained and evaluated like the model itself.

    Each rank gives its samples: those of its place `data_rank` among `data_ranks`; ranks of one place give the same.
    After `backward()` every parameter has the gradient of the mean over the whole batch, or this rank's part of it.
    """

    def __init__(self, setup: Setup, plan: Layout, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.module = setup.module
        self.plan = plan
        self.mesh = mesh
        self.data_rank = data_place(plan.degrees)
        self.data_ranks = plan.degrees.data
        self._setup = setup

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, whole."""
        return self._setup.call(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of micro-batches add up; those of the first backward pass outside are exchanged."""
        with self._setup.alone():
            yield

    def backward(self, loss: Loss, parts: list[tuple[float, Any]]) -> torch.Tensor:
        """Leave the gradient of a batch, given in micro-batches with their weights; return its mean loss, detached."""
        if self._setup.backward is not None:
            if len(parts) > 1:
                raise UnsupportedPlan.of(self.plan.strategy, "micro-batches are the plan's; give one part, the batch")
            return self._mean(self._setup.backward(loss, parts[0][1]))
        # Gradients are exchanged with the last micro-batch; until then they only add up.
        total: Any = 0.0
        for number, (weight, part) in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else self.no_sync():
                value = loss(self, part) * weight
                value.backward()
            total = total + value.detach()
        return self._mean(total)

    def _mean(self, value: Any) -> torch.Tensor:
        if self.plan.devices > 1:
            dist.all_reduce(value)
        return value / self.plan.devices  # type: ignore[no-any-return]
