"""Pipeline parallelism by torch's pipelining: this rank's stages of a model, and the schedule of its micro-batches.

Schedules: GPipe (arXiv 1811.06965), 1F1B and interleaved 1F1B (arXiv 2104.04473, section 2.2).
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
        self._device = next((each.device for each in model.parameters()), torch.device("cpu"))
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
        self._schedules: dict[Any, Any] = {}  # by what goes in: of each what is sent between stages is known
        self._loss: Loss | None = None
        self._parts: list[Any] = []

    @property
    def last(self) -> bool:
        """Whether this rank has the last stage, which knows the loss."""
        return self._count - 1 in self._mine

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, on every rank: the batch goes through the stages as it is, one at a time."""
        if torch.is_grad_enabled() or kwargs:
            raise UnsupportedPlan.of(
                self._plan.strategy,
                "no rank can call the whole model for gradients; train with run.step(batch), or backward(loss, parts), "
                "and evaluate with tensors by place under torch.no_grad()",
            )
        return self._told(self._through(args))

    def _through(self, args: Any, seen: dict[int, tuple[Any, Any]] | None = None) -> Any:
        """Pass a batch through all stages; note in `seen` what goes into this rank's, and comes out."""
        ranks = self._plan.degrees.pipeline
        found = args
        for index in range(self._count):
            if index in self._mine:
                given, found = found, (self._pieces[index](*found),)
                if seen is not None:
                    seen[index] = tuple(_Like.of(each).made("meta") for each in given), _Like.of(found[0]).made("meta")
            if index + 1 < self._count:
                found = self._passed(found, index % ranks, (index + 1) % ranks)
        return found

    def _passed(self, found: Any, source: int, target: int) -> Any:
        """Send what a stage made to the rank of the next."""
        if source == target or self._rank not in {source, target}:
            return found
        if self._rank == source:
            dist.send_object_list([_Like.of(found[0])], group=self._group, group_dst=target, device=self._device)
            dist.send(found[0].detach().contiguous(), group=self._group, group_dst=target)
            return found
        like: list[Any] = [None]
        dist.recv_object_list(like, group=self._group, group_src=source, device=self._device)
        made = like[0].made(self._device)
        dist.recv(made.detach(), group=self._group, group_src=source)
        return (made,)

    def _told(self, found: Any) -> torch.Tensor:
        """Give what the last stage made to all ranks."""
        source = self._plan.degrees.pipeline - 1
        like = [_Like.of(found[0]) if self.last else None]
        dist.broadcast_object_list(like, group=self._group, group_src=source, device=self._device)
        whole = found[0].contiguous() if self.last else like[0].made(self._device)  # type: ignore[union-attr]
        dist.broadcast(whole, group=self._group, group_src=source)
        return whole

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
        shapes = tuple(each.shape for each in inputs)
        if shapes not in self._schedules:
            self._schedules[shapes] = self._made(tuple(each[: size // count] for each in inputs))
        schedule = self._schedules[shapes]
        losses: list[torch.Tensor] = []
        target = torch.arange(count, device=device)
        given = inputs if 0 in self._mine else ()
        if self.last:
            schedule.step(*given, target=target, losses=losses, return_outputs=False)
        else:
            schedule.step(*given, return_outputs=False)
        total = (
            torch.stack(losses).mean().detach() if self.last else torch.zeros((), device=device, dtype=inputs[0].dtype)
        )
        self._loss, self._parts = None, []
        dist.broadcast(total, group=self._group, group_src=self._plan.degrees.pipeline - 1)
        return total

    def _made(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        """Return the schedule for micro-batches such as this one.

        Its stages are told what goes in and out: torch would find out by training on whatever is in memory, which would
        go into the norms' statistics.
        """
        seen: dict[int, tuple[Any, Any]] = {}
        with self._untouched():
            self._through(inputs, seen)
        device = inputs[0].device
        stages = [
            PipelineStage(piece, index, self._count, device, *seen[index], group=self._group)
            for index, piece in self._pieces.items()
        ]
        settings = {"n_microbatches": self._plan.microbatches, "loss_fn": self._loss_of}
        if self._plan.schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, **settings)  # type: ignore[arg-type]
        kind = ScheduleGPipe if self._plan.schedule == "gpipe" else Schedule1F1B
        return kind(stages[0], **settings)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def _untouched(self) -> Iterator[None]:
        """Leave buffers and random numbers as they were."""
        kept = [(buffer, buffer.clone()) for piece in self._pieces.values() for buffer in piece.buffers()]
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            yield
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)

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


@dataclass(frozen=True)
class _Like:
    """What another rank is to know of a tensor before it comes."""

    shape: torch.Size
    dtype: torch.dtype
    trained: bool

    @classmethod
    def of(cls, tensor: Any) -> "_Like":
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedPlan.of("pipeline", f"a stage returns {type(tensor).__name__}; allowed: a tensor")
        return cls(tensor.shape, tensor.dtype, tensor.requires_grad)

    def made(self, device: torch.device | str) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.trained)


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
