"""Runs pipeline schedules (GPipe, 1F1B, interleaved) of micro-batches over this rank's stages, by torch's pipelining.

Schedules: GPipe (arXiv 1811.06965), 1F1B and interleaved 1F1B (arXiv 2104.04473, section 2.2), and an order of the
layout's own, such as MadPipe's, in which a device may have stages that are not neighbours.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from trainwright.errors import UnsupportedPlan
from trainwright.plan import Layout
from trainwright.publishing import write_file
from trainwright.train.batch_slicing import samples_in, slice_batch
from trainwright.train.parallel.pipeline.cuts import cuts_of, owned_modules
from trainwright.train.parallel.pipeline.divided_model import DividedModel, StageModule
from trainwright.train.parallel.pipeline.partial_forward import (
    Event,
    ParameterNeededError,
    PartialForward,
    TensorLike,
    without_objects,
)
from trainwright.train.parallel.pipeline.stage_plans import plan_stages
from trainwright.train.parallel.recompute.optimizer_state import state_bytes
from trainwright.train.parallel.recompute.sample_step import restored_after
from trainwright.train.parallel.recompute.trees import map_only, tensors_of

__all__ = ["PipelineRunner"]

Loss = Callable[[nn.Module, Any], torch.Tensor]


@dataclass(frozen=True)
class _Course:
    """What a forward does: its events, and for each stage the numbers of the tensors that it is handed."""

    events: list[Event]
    into: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, events: list[Event], consumed: Mapping[int, set[int]]) -> "_Course":
        """Work out which tensors cross each boundary: made before it, and read behind it."""
        made: dict[int, int] = {}
        for event in events:
            for slot in event.slots:
                made.setdefault(slot.number, event.stage)
        stages = range(len(consumed) + 1)
        read = [set().union(*(consumed[later] for later in stages[stage:-1])) for stage in stages]
        return cls(events, tuple(tuple(sorted(n for n in read[stage] if made[n] < stage)) for stage in stages))

    def likes(self, stage: int) -> list[TensorLike]:
        """Describe what a stage is handed."""
        found = {slot.number: slot.like for event in self.events for slot in event.slots}
        return [found[number] for number in self.into[stage]]


@dataclass
class _Handoff:
    """What goes from stage to stage when they run one after the other; with a problem the rest do not run."""

    events: list[Event]
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    problem: Any = None
    """Why it fails, or the parameters that a rank needs, with the rank."""


class PipelineRunner(nn.Module):
    """This rank's stages. Forward and backward passes come in one: `backward(loss, batch)`.

    The model is cut where the plan says; `loss(model, batch)` is called for each micro-batch on every rank, and ends in
    the model's forward where the next stage begins (see `partial_forward`).
    """

    def __init__(
        self, model: nn.Module, plan: Layout, mesh: DeviceMesh, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        super().__init__()
        self._plan, self._optimizer = plan, optimizer
        self._group = mesh.get_group("pipeline")
        self._rank = dist.get_rank(self._group)
        self._device, self._dtype = next((parameter.device, parameter.dtype) for parameter in model.parameters())
        cuts = cuts_of(model, plan)
        self._count = len(cuts) + 1
        # In a dry run there are no other ranks: this one runs all stages.
        self._alone = dist.get_backend(self._group) == "fake"
        # Without a placement stages go round the ranks, so that interleaved chunks of a rank lie apart.
        round_robin = tuple(index % plan.degrees.pipeline for index in range(self._count))
        self._ranks_of = (self._rank,) * self._count if self._alone else plan.placement or round_robin
        self._mine = [index for index, rank in enumerate(self._ranks_of) if rank == self._rank]
        self._owned = owned_modules(model, plan, cuts)
        self._divided = DividedModel(model, self._owned, cuts, ranks_of=self._ranks_of, group=self._group)
        self._pieces = {
            index: StageModule(
                [each for each in self._owned if each.stage == index], partial(self._run_stage, index)
            )
            for index in self._mine
        }  # fmt: skip
        self.module = model
        """The model, without the parameters and buffers that only other ranks' stages use."""
        # By the shapes of inputs: a schedule is told what goes between its stages.
        self._schedules: dict[Any, tuple[_Course, Any]] = {}
        self._course: _Course = _Course([], ())
        self._loss: Loss | None = None
        self._parts: list[Any] = []

    @property
    def last(self) -> bool:
        """Whether this rank has the last stage, which knows the loss."""
        return self._count - 1 in self._mine

    def called(self) -> list[nn.Module]:
        """Return the modules with parameters that this rank's stages call, each once.

        Raises `UnsupportedPlan` where a parameter is in several of them, or in none.
        """
        found = [each.module for each in self._owned if each.whole and each.stage in self._mine]
        trained = [parameter for entry in found for parameter in entry.parameters()]
        if len(trained) != len(set(trained)) or set(trained) != set(self.module.parameters()):
            raise UnsupportedPlan.of(
                self._plan.strategy,
                "ZeRO beside a pipeline, and parameters that layers of a stage share or that are in none; allowed: "
                "without ZeRO",
            )
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, on every rank: the batch goes through the stages as it is, one at a time."""
        if torch.is_grad_enabled():
            raise UnsupportedPlan.of(
                self._plan.strategy,
                "no rank can call the whole model for gradients; train with run.step(batch), or backward(loss, parts), "
                "and evaluate under torch.no_grad()",
            )
        self._divided.send_values()
        _, _, result = self._learn(lambda: self.module(*args, **kwargs))
        return self._broadcast_result(result)

    def backward(self, loss: Loss, batch: Any) -> torch.Tensor:
        """Pass the micro-batches of a batch through all stages and back; return its mean loss, on every rank."""
        count = self._plan.microbatches
        size = samples_in(batch)
        if size % count:
            raise UnsupportedPlan.of(
                self._plan.strategy,
                f"{size} samples cannot be cut into {count} equal micro-batches; give drop_last=True",
            )
        self._loss, self._parts = loss, slice_batch(batch, size // count)
        key = self.module.training, *((each.shape, each.dtype) for each in tensors_of(self._parts[0]))
        self._divided.send_values()
        # Buffers between stages have fixed shapes: a batch of another size needs a schedule of its own.
        if key not in self._schedules:
            self._schedules[key] = self._make_schedule()
        self._course, schedule = self._schedules[key]
        losses: list[torch.Tensor] = []
        # Double precision holds whatever kind of number a loss is.
        total = torch.zeros((), device=self._device, dtype=torch.float64)
        if schedule is not None:
            # The schedule cuts this as it would cut inputs, so that each micro-batch gets its number.
            places = torch.arange(count)
            ends = {"target": places, "losses": losses} if self.last else {}
            schedule.step(*([places] if 0 in self._mine else []), place=places, return_outputs=False, **ends)
            for parameter in (*self.module.parameters(), *self._divided.lent_parameters()):
                if parameter.grad is not None:
                    parameter.grad.div_(count)
            self._divided.collect_gradients()
        if losses:
            # Micro-batches are of one size, so that the mean of their means is that of the batch.
            total = torch.stack(losses).mean().detach().double()
        self._loss, self._parts = None, []
        dist.broadcast(total, group=self._group, group_src=self._ranks_of[-1])
        return total.to(self._dtype)

    def _make_schedule(self) -> tuple[_Course, Any]:
        """Return what the model does with micro-batches such as these, and the schedule for them; in dry runs None.

        Its stages are told what goes in and out: torch would find out by training on whatever is in memory, which would
        go into the norms' statistics.
        """
        course, inputs, _ = self._learn(lambda: self._loss_of(0), restored=lambda: restored_after(self.module))
        self._course = course
        if self._alone:
            return course, None
        pieces: Mapping[int, nn.Module] = self._pieces
        if self._plan.memory is not None:
            # The loss is measured on the first micro-batch; all are of one size.
            pieces = plan_stages(
                self._pieces,
                inputs,
                in_flight={index: self._in_flight(index) for index in self._mine},
                budget=self._plan.memory,
                state_bytes=0 if self._optimizer is None else state_bytes(self._optimizer),
            )
            # Measuring has trained on them, and they are no parameters of a stage.
            for lent in self._divided.lent_parameters():
                lent.grad = None
        settings: dict[str, Any] = {"n_microbatches": self._plan.microbatches, "scale_grads": False}
        # The last stage makes the loss.
        settings["loss_fn"] = lambda output, _: output
        stages: list[Any] = [
            PipelineStage(piece, index, self._count, self._device, *self._shapes(index), group=self._group)
            for index, piece in pieces.items()
        ]
        if self._plan.order:
            schedule = _PipelineScheduleRuntime(stages, **settings)
            with TemporaryDirectory() as folder:
                path = Path(folder) / "order.csv"
                write_file(path, "".join(f"{row}\n" for row in self._plan.order))
                schedule._load_csv(str(path))  # noqa: SLF001  torch has no public loader; the test of two ranks pins it
            return course, schedule
        if self._plan.schedule == "interleaved":
            return course, ScheduleInterleaved1F1B(stages, **settings)
        # 1F1B needs as many micro-batches as stages.
        # With fewer it is GPipe, which torch runs for any number.
        few = self._plan.microbatches < self._count
        kind = ScheduleGPipe if few or self._plan.schedule == "gpipe" else Schedule1F1B
        return course, kind(stages[0], **settings)

    def _shapes(self, index: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Return what goes into a stage, and what comes out, without their values."""
        given = [like.as_tensor("meta") for like in self._course.likes(index)]
        made = [like.as_tensor("meta") for like in self._course.likes(index + 1)]
        # The first stage is told the number of the micro-batch; the last one makes the loss.
        return tuple(given or [torch.empty(1, dtype=torch.int64, device="meta")]), tuple(
            made or [torch.empty((), device="meta")]
        )

    def _run_stage(self, index: int, received: Any, place: int) -> Any:
        """Return what a stage makes of a micro-batch: what it hands on, or the loss."""
        course = self._course
        run = PartialForward(
            index,
            dict(zip(course.into[index], received, strict=False)),
            course.events,
            wanted=course.into[index + 1],
            weights=self._divided.weights,
        )
        loss = run.run(lambda: self._loss_of(place))
        run.finish(self._count)
        if index == self._count - 1:
            return loss
        return tuple(each.contiguous() for each in run.handed_on.values())

    def _loss_of(self, place: int) -> torch.Tensor:
        """Return the user's loss of a micro-batch."""
        assert self._loss is not None  # noqa: S101 -- `backward` has set it
        return self._loss(_OnlyCalled(self.module), self._parts[place])

    def _learn(
        self, call: Callable[[], Any], restored: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> tuple[_Course, dict[int, tuple[torch.Tensor, ...]], Any]:
        """Run all stages one after the other; return what they do, what goes into each, and the last one's result.

        What only one rank finds out, all are told: a refusal, parameters that another rank has, which are lent then.
        """
        while True:
            handed: dict[int, dict[int, torch.Tensor]] = {}
            consumed: dict[int, set[int]] = {}
            handoff, result, error = _Handoff([]), None, None
            for index in range(self._count):
                if index in self._mine and handoff.problem is None:
                    handed[index] = handoff.tensors
                    try:
                        with restored():
                            result, handoff, consumed[index] = self._run_in_turn(index, call, handoff)
                    except ParameterNeededError as needed:
                        handoff = _Handoff([], problem=(needed.paths, self._rank))
                    except Exception as failure:  # noqa: BLE001 -- all ranks are told
                        error, handoff = failure, _Handoff([], problem=_reason(failure))
                if index + 1 < self._count:
                    handoff = self._pass_on(handoff, self._ranks_of[index], self._ranks_of[index + 1])
            # The last rank knows all events, and each what its stages have read.
            told = [(handoff.events, handoff.problem)]
            if not self._alone:
                dist.broadcast_object_list(told, group=self._group, group_src=self._ranks_of[-1], device=self._device)
            events, problem = told[0]
            if error is not None:
                raise error
            if isinstance(problem, str):
                raise UnsupportedPlan.of(self._plan.strategy, problem)
            if problem is not None:
                self._divided.lend(*problem)
                self._divided.send_values()
                continue
            everywhere: list[Any] = [consumed] * dist.get_world_size(self._group)
            if not self._alone:
                dist.all_gather_object(everywhere, consumed, group=self._group)
            course = _Course.of(events, {index: read for each in everywhere for index, read in each.items()})
            inputs = {index: tuple(found[number] for number in course.into[index]) for index, found in handed.items()}
            return course, inputs, result

    def _run_in_turn(
        self, index: int, call: Callable[[], Any], handoff: _Handoff
    ) -> tuple[Any, _Handoff, set[int]]:  # fmt: skip
        """Run a stage of which it is not known yet what it does."""
        run = PartialForward(index, handoff.tensors, list(handoff.events), weights=self._divided.weights)
        try:
            result = run.run(call)
            run.finish(self._count)
        finally:
            # No backward pass follows that would divide gathered weights again.
            for module in self.module.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        return result, _Handoff(run.events, _moved(run.handed_on, self._device)), run.consumed

    def _pass_on(self, handoff: _Handoff, source: int, target: int) -> _Handoff:
        """Send what a stage made to the rank of the next."""
        if source == target or self._rank not in {source, target}:
            return handoff
        found = [replace(handoff, tensors=_moved(handoff.tensors, "cpu"))]
        if self._rank == source:
            dist.send_object_list(found, group=self._group, group_dst=target, device=self._device)
            return handoff
        dist.recv_object_list(found, group=self._group, group_src=source, device=self._device)
        return replace(found[0], tensors=_moved(found[0].tensors, self._device))

    def _broadcast_result(self, result: Any) -> Any:
        """Give what the last stage made to all ranks; caches and other objects become None."""
        told = [map_only(torch.Tensor, torch.Tensor.cpu, without_objects(result))]
        dist.broadcast_object_list(told, group=self._group, group_src=self._ranks_of[-1], device=self._device)
        return map_only(torch.Tensor, lambda each: each.to(self._device), told[0])

    def _in_flight(self, index: int) -> int:
        """Return the micro-batches whose saved values a stage holds at most."""
        count = self._plan.microbatches
        if self._plan.order:
            return _most_in_flight(self._plan.order[self._rank].split(","), index)
        # One-chunk 1F1B drains from the last stage; the other schedules may hold all of them.
        return count if self._plan.schedule in {"gpipe", "interleaved"} else min(count, self._count - index)


def _moved(tensors: Mapping[int, torch.Tensor], device: torch.device | str) -> dict[int, torch.Tensor]:
    """Return tensors on a device, out of their graph."""
    return {number: each.detach().to(device).requires_grad_(each.requires_grad) for number, each in tensors.items()}


def _most_in_flight(row: list[str], index: int) -> int:
    """Return how many micro-batches of a stage are between their forward and backward at most, in a row as "0F3"."""
    kinds = (cell[len(str(index))] for cell in row if cell.startswith((f"{index}F", f"{index}B")))
    return max(accumulate(1 if kind == "F" else -1 for kind in kinds), default=0)


def _reason(failure: Exception) -> str:
    said = str(failure)
    return said.partition("cannot be set up: ")[2] or f"{type(failure).__name__}: {said}"


class _OnlyCalled(nn.Module):
    """A model that a loss can call, and of which it sees no parameters: no rank has all of them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._call: Any = [model]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self._call[0](*args, **kwargs)
