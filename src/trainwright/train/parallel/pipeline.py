"""Pipeline parallelism by torch's pipelining: this rank's stages of a model, and the schedule of its micro-batches.

Schedules: GPipe (arXiv 1811.06965), 1F1B and interleaved 1F1B (arXiv 2104.04473, section 2.2).
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from trainwright.errors import UnsupportedPlan
from trainwright.plan import ParallelPlan
from trainwright.train.cutting import cut, samples_in
from trainwright.train.parallel.blocks import chain_of

__all__ = ["Pipeline", "stages_of"]

Loss = Callable[[nn.Module, Any], torch.Tensor]


class Pipeline(nn.Module):
    """This rank's stages. Forward and backward passes come in one: `backward(loss, batch)`.

    The model is an `nn.Sequential`, cut as the plan says; `loss(model, batch)` is to call the model once, with tensors
    whose first dimension are samples.
    """

    def __init__(self, model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> None:
        super().__init__()
        self._plan = plan
        self._group = mesh.get_group("pipeline")
        self._rank, ranks = dist.get_rank(self._group), plan.degrees.pipeline
        pieces = stages_of(model, plan)
        self._count = len(pieces)
        self._mine = range(self._rank, self._count, ranks)
        self._pieces = {index: nn.Sequential(*(each for _, each in pieces[index])) for index in self._mine}
        for index in set(range(self._count)) - set(self._mine):
            for path, _ in pieces[index]:
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, nn.Identity())
        self.module = model
        """The model, with nothing in place of the other ranks' modules."""
        self._schedule: Any = None
        self._loss: Loss | None = None
        self._parts: list[Any] = []

    @property
    def last(self) -> bool:
        """Whether this rank has the last stage, which knows the loss."""
        return self._count - 1 in self._mine

    def forward(self, *_: Any, **__: Any) -> Any:
        """Refuse: no rank has the model."""
        raise UnsupportedPlan.of(
            self._plan.strategy,
            "no rank can call the whole model; train with run.step(batch), or backward(loss, parts)",
        )

    def backward(self, loss: Loss, batch: Any) -> torch.Tensor:
        """Pass the micro-batches of a batch through all stages and back; return its mean loss, on every rank."""
        count = self._plan.microbatches
        size = samples_in(batch)
        if size % count:
            raise UnsupportedPlan.of(
                self._plan.strategy,
                f"{size} samples cannot be cut into {count} equal micro-batches; give drop_last=True",
            )
        self._loss, self._parts = loss, cut(batch, size // count)
        inputs = _inputs_of(loss, batch)
        device = inputs[0].device
        if self._schedule is None:
            self._schedule = self._made(device)
        losses: list[torch.Tensor] = []
        target = torch.arange(count, device=device)
        given = inputs if 0 in self._mine else ()
        if self.last:
            self._schedule.step(*given, target=target, losses=losses, return_outputs=False)
        else:
            self._schedule.step(*given, return_outputs=False)
        total = (
            torch.stack(losses).mean().detach() if self.last else torch.zeros((), device=device, dtype=inputs[0].dtype)
        )
        self._loss, self._parts = None, []
        dist.broadcast(total, group=self._group, group_src=self._plan.degrees.pipeline - 1)
        return total

    def _made(self, device: torch.device) -> Any:
        stages = [
            PipelineStage(piece, index, self._count, device, group=self._group) for index, piece in self._pieces.items()
        ]
        settings = {"n_microbatches": self._plan.microbatches, "loss_fn": self._loss_of}
        if self._plan.schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, **settings)  # type: ignore[arg-type]
        kind = ScheduleGPipe if self._plan.schedule == "gpipe" else Schedule1F1B
        return kind(stages[0], **settings)  # type: ignore[arg-type]

    def _loss_of(self, output: Any, place: torch.Tensor) -> torch.Tensor:
        """Return the user's loss of a micro-batch whose output is there already."""
        assert self._loss is not None  # noqa: S101 -- `backward` has set it
        return self._loss(_Given(output), self._parts[int(place)])


def stages_of(model: nn.Module, plan: ParallelPlan) -> list[list[tuple[str, nn.Module]]]:
    """Return the stages of a model, each the named modules that it runs one after the other.

    Raises `UnsupportedPlan` if the model is no sequence, or the plan's stages are not as long as it.
    """
    chain = chain_of(model)
    count = plan.degrees.pipeline * (plan.chunks if plan.schedule == "interleaved" else 1)
    if not isinstance(model, nn.Sequential):
        raise UnsupportedPlan.of(
            plan.strategy,
            f"{type(model).__name__} is no nn.Sequential, which a pipeline is cut from; make its forward one",
        )
    sizes = plan.stages or tuple(len(range(each, len(chain), count)) for each in range(count))
    if len(sizes) != count or sum(sizes) != len(chain) or min(sizes) < 1:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"its stages {sizes} are for {count} stages of {sum(sizes)} modules; the model has {len(chain)}, one after "
            "the other",
        )
    ends = list(accumulate(sizes))
    return [chain[end - size : end] for end, size in zip(ends, sizes, strict=True)]


class _Given(nn.Module):
    """Stands for a model whose output is known."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_: Any, **__: Any) -> Any:
        return self._output


class _Called(Exception):
    """What a loss gives its model, found."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        super().__init__()
        self.inputs = args


class _Asking(nn.Module):
    """Stands for a model of which only the arguments are of interest."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or not args or not all(isinstance(arg, torch.Tensor) for arg in args):
            raise UnsupportedPlan.of("pipeline", "the loss gives the model other arguments than tensors by place")
        raise _Called(args)


def _inputs_of(loss: Loss, batch: Any) -> tuple[torch.Tensor, ...]:
    try:
        loss(_Asking(), batch)
    except _Called as called:
        return called.inputs
    raise UnsupportedPlan.of("pipeline", "the loss does not call the model that it is given")
