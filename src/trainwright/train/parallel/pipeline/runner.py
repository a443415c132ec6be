"""Pipeline parallelism by torch's pipelining: this rank's stages of a model, and the schedule of its micro-batches.

Schedules: GPipe (arXiv 1811.06965), 1F1B and interleaved 1F1B (arXiv 2104.04473, section 2.2), and an order of the
layout's own, such as MadPipe's, in which a device may have stages that are not neighbours.
"""

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from trainwright.errors import UnsupportedPlan
from trainwright.plan import Layout
from trainwright.publishing import write_file
from trainwright.train.batch_slicing import samples_in, slice_batch
from trainwright.train.parallel.pipeline.cuts import cut_model, cuts_of, drop_unused, tied_parameters
from trainwright.train.parallel.pipeline.stage_plans import plan_stages
from trainwright.train.parallel.recompute.optimizer_state import state_bytes
from trainwright.train.parallel.recompute.sample_step import restored_after

__all__ = ["PipelineRunner"]

Loss = Callable[[nn.Module, Any], torch.Tensor]


class PipelineRunner(nn.Module):
    """This rank's stages. Forward and backward passes come in one: `backward(loss, batch)`.

    The model is cut where the plan says; `loss(model, batch)` is to call the model once, with tensors whose first
    dimension are samples. Of a parameter that several stages use each of their ranks has all of the gradient.
    """

    def __init__(
        self, model: nn.Module, plan: Layout, mesh: DeviceMesh, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        super().__init__()
        self._plan, self._optimizer = plan, optimizer
        self._group = mesh.get_group("pipeline")
        self._rank, self._ranks = dist.get_rank(self._group), plan.degrees.pipeline
        self._device, self._dtype = next((parameter.device, parameter.dtype) for parameter in model.parameters())
        cuts = cuts_of(model, plan)
        self._count = len(cuts) + 1
        # Without a placement stages go round the ranks, so that interleaved chunks of a rank lie apart.
        self._ranks_of = plan.placement or tuple(index % self._ranks for index in range(self._count))
        self._mine = [index for index, rank in enumerate(self._ranks_of) if rank == self._rank]
        modes = {module: module.training for module in model.modules()}
        # Training and evaluation are traced apart: dropout and norms take other branches.
        stages = {mode: cut_model(model.train(mode), plan, cuts) for mode in (True, False)}
        # Modules return to modes of their own, such as norms that keep their statistics.
        for each, mode in modes.items():
            each.training = mode
        self._pieces = {mode: {index: found[index] for index in self._mine} for mode, found in stages.items()}
        self._tied = tied_parameters(model, stages[True], self._ranks_of)
        drop_unused(model, list(self._pieces[True].values()))
        self.module = model
        """The model, without the parameters and buffers that only other ranks' stages use."""
        # By the shapes of inputs: a schedule is told what goes between its stages.
        self._schedules: dict[Any, Any] = {}
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
        calls = [
            graph.get_submodule(str(node.target))
            for piece in self._pieces[True].values()
            for graph in piece.modules()
            if isinstance(graph, fx.GraphModule)
            for node in graph.graph.nodes
            if node.op == "call_module"
        ]
        found = [item for item in dict.fromkeys(calls) if next(item.parameters(), None) is not None]
        trained = [parameter for entry in found for parameter in entry.parameters()]
        if len(trained) != len(set(trained)) or set(trained) != set(self.module.parameters()) or self._tied:
            raise UnsupportedPlan.of(
                self._plan.strategy,
                "ZeRO beside a pipeline, and parameters that layers share or that are in none; allowed: without ZeRO",
            )
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, on every rank: the batch goes through the stages as it is, one at a time."""
        if torch.is_grad_enabled() or kwargs:
            raise UnsupportedPlan.of(
                self._plan.strategy,
                "no rank can call the whole model for gradients; train with run.step(batch), or backward(loss, parts), "
                "and evaluate with tensors by place under torch.no_grad()",
            )
        return self._broadcast_output(self._run_stages(args))

    def _run_stages(self, args: Any, seen: dict[int, tuple[Any, Any]] | None = None) -> Any:
        """Pass a batch through all stages; note in `seen` what goes into this rank's, and comes out."""
        found = args
        pieces = self._pieces[self.module.training]
        for index in range(self._count):
            if index in self._mine:
                inputs, found = found, (pieces[index](*found),)
                if seen is not None:
                    seen[index] = inputs, found[0]
            if index + 1 < self._count:
                found = self._pass_on(found, self._ranks_of[index], self._ranks_of[index + 1])
        return found

    def _pass_on(self, found: Any, source: int, target: int) -> Any:
        """Send what a stage made to the rank of the next."""
        if source == target or self._rank not in {source, target}:
            return found
        if self._rank == source:
            # Shape and type go first: the receiver has to allocate before it receives.
            dist.send_object_list([_Like.of(found[0])], group=self._group, group_dst=target, device=self._device)
            dist.send(found[0].detach().contiguous(), group=self._group, group_dst=target)
            return found
        like: list[Any] = [None]
        dist.recv_object_list(like, group=self._group, group_src=source, device=self._device)
        as_tensor = like[0].as_tensor(self._device)
        # Through a detached view, as autograd refuses writes to a leaf that wants a gradient.
        dist.recv(as_tensor.detach(), group=self._group, group_src=source)
        return (as_tensor,)

    def _broadcast_output(self, found: Any) -> torch.Tensor:
        """Give what the last stage made to all ranks."""
        source = self._ranks_of[-1]
        like = [_Like.of(found[0]) if self.last else None]
        dist.broadcast_object_list(like, group=self._group, group_src=source, device=self._device)
        whole = found[0].contiguous() if self.last else like[0].as_tensor(self._device)  # type: ignore[union-attr]
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
        # The schedule of torch asks for the loss of each micro-batch by its number.
        self._loss, self._parts = loss, slice_batch(batch, size // count)
        inputs = _inputs_of(loss, batch)
        device = inputs[0].device
        shapes = tuple(item.shape for item in inputs)
        # Buffers between stages have fixed shapes: a batch of another size needs a schedule of its own.
        if shapes not in self._schedules:
            self._schedules[shapes] = self._make_schedule(tuple(entry[: size // count] for entry in inputs))
        schedule = self._schedules[shapes]
        losses: list[torch.Tensor] = []
        # The schedule cuts this as it cuts the inputs, so that each micro-batch gets its number.
        target = torch.arange(count, device=device)
        inputs = inputs if 0 in self._mine else ()
        if self.last:
            schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs, return_outputs=False)
        # Double precision holds whatever kind of number a loss is.
        total = torch.zeros((), device=self._device, dtype=torch.float64)
        if self.last:
            # Micro-batches are of one size, so that the mean of their means is that of the batch.
            total = torch.stack(losses).mean().detach().double()
        self._loss, self._parts = None, []
        for parameter, ranks in self._tied:
            if self._rank in ranks:
                self._sum_tied(parameter, ranks)
        dist.broadcast(total, group=self._group, group_src=self._ranks_of[-1])
        return total.to(self._dtype)

    def _make_schedule(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        """Return the schedule for micro-batches such as this one.

        Its stages are told what goes in and out: torch would find out by training on whatever is in memory, which would
        go into the norms' statistics.
        """
        seen: dict[int, tuple[Any, Any]] = {}
        with restored_after(self.module):
            self._run_stages(inputs, seen)
        pieces = self._pieces[True] if self._plan.memory is None else self._within_memory(seen)
        device = inputs[0].device
        stages: list[Any] = [
            PipelineStage(piece, index, self._count, device, *_shapes(*seen[index]), group=self._group)
            for index, piece in pieces.items()
        ]
        settings: dict[str, Any] = {"n_microbatches": self._plan.microbatches, "loss_fn": self._loss_of}
        if self._plan.order:
            schedule = _PipelineScheduleRuntime(stages, **settings)
            with TemporaryDirectory() as folder:
                path = Path(folder) / "order.csv"
                write_file(path, "".join(f"{row}\n" for row in self._plan.order))
                schedule._load_csv(str(path))  # noqa: SLF001  torch has no public loader; the test of two ranks pins it
            return schedule
        if self._plan.schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, **settings)
        # 1F1B needs as many micro-batches as stages.
        # With fewer it is GPipe, which torch runs for any number.
        few = self._plan.microbatches < self._count
        kind = ScheduleGPipe if few or self._plan.schedule == "gpipe" else Schedule1F1B
        return kind(stages[0], **settings)

    def _within_memory(self, seen: dict[int, tuple[Any, Any]]) -> dict[int, nn.Module]:
        """Return this rank's stages as modules that run again what does not fit into the layout's memory budget."""
        optimizer = self._optimizer
        # The loss is measured on the first micro-batch; all are of one size.
        return plan_stages(
            self._pieces[True],
            {index: inputs for index, (inputs, _) in seen.items()},
            in_flight={index: self._in_flight(index) for index in self._mine},
            budget=self._plan.memory,
            state_bytes=0 if optimizer is None else state_bytes(optimizer),
            loss=(lambda output: self._loss_of(output, torch.tensor(0))) if self.last else None,
        )

    def _in_flight(self, index: int) -> int:
        """Return the micro-batches whose saved values a stage holds at most."""
        count = self._plan.microbatches
        if self._plan.order:
            return _most_in_flight(self._plan.order[self._rank].split(","), index)
        # One-chunk 1F1B drains from the last stage; the other schedules may hold all of them.
        return count if self._plan.schedule in {"gpipe", "interleaved"} else min(count, self._count - index)

    def _sum_tied(self, parameter: nn.Parameter, ranks: list[int]) -> None:
        """Add up what the stages of several ranks found for one parameter, in the order of the ranks."""
        # A rank without a gradient sends zeros: the others wait for its message.
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = getattr(parameter.grad, "_local_tensor", parameter.grad)
        terms = {rank: gradient.clone() if rank == self._rank else torch.empty_like(gradient) for rank in ranks}
        # Every rank sends its term to the others and adds all terms in one order, so that sums are equal to the bit.
        messages = [
            dist.P2POp(kind, terms[of], group=self._group, group_peer=rank)
            for rank in ranks
            if rank != self._rank
            for kind, of in ((dist.isend, self._rank), (dist.irecv, rank))
        ]
        for message in dist.batch_isend_irecv(messages):
            message.wait()
        gradient.copy_(functools.reduce(torch.add, terms.values()))

    def _loss_of(self, output: Any, place: torch.Tensor) -> torch.Tensor:
        """Return the user's loss of a micro-batch whose output is there already."""
        assert self._loss is not None  # noqa: S101 -- `backward` has set it
        return self._loss(_KnownOutput(output), self._parts[int(place)])


def _most_in_flight(row: list[str], index: int) -> int:
    """Return how many micro-batches of a stage are between their forward and backward at most, in a row as "0F3"."""
    balance: Counter[str] = Counter()
    most = 0
    for cell in row:
        if cell.startswith((f"{index}F", f"{index}B")):
            balance[cell[len(str(index))]] += 1
            most = max(most, balance["F"] - balance["B"])
    return most


def _shapes(inputs: tuple[Any, ...], output: Any) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Return what goes into a stage, and what comes out, without their values."""
    return tuple(_Like.of(item).as_tensor("meta") for item in inputs), _Like.of(output).as_tensor("meta")


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

    def as_tensor(self, device: torch.device | str) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.trained)


class _KnownOutput(nn.Module):
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
        # A model that raises what it is called with: nothing is computed to learn the inputs.
        loss(_Asking(), batch)
    except _Called as called:
        return called.inputs
    raise UnsupportedPlan.of("pipeline", "the loss does not call the model that it is given")
