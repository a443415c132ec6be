"""A pipeline plan carried out: stages as modules that recompute what they cannot hold, and torch's schedule of them.

A stage runs the forward of several micro-batches before the first backward. So it is planned for both halves of one:
what a micro-batch holds between them counts once for each in flight, its own peak once. Candidates are the persistent
plans of the stage's layers at several memories, as they are and with everything dropped in between.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from trainwright.errors import PipelineError
from trainwright.model.chain import NO_LOSS, Chain
from trainwright.plan.memory.checkpointing import keep_all
from trainwright.plan.memory.minimum_budget import lowest_plan
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.pipeline.planning import PipelinePlan
from trainwright.plan.pipeline.stage_memory import PATTERNS, in_flight, input_bytes, weight_bytes
from trainwright.publishing import write_file
from trainwright.train.parallel.recompute.entry import carry_out
from trainwright.train.parallel.recompute.sample_step import call_with, restored_after
from trainwright.train.parallel.recompute.stages import StageRow, split_model

__all__ = ["part_operations", "scheduled", "staged"]

_LEVELS = 12
Loss = Callable[[Any, Any], torch.Tensor]


def staged(model: nn.Module, plan: PipelinePlan) -> tuple[nn.Module, ...]:
    """Return the plan's stages of a model; their parameters are the model's own. See `trainwright.memory.staged`."""
    row = split_model(model, skips=False)
    layers = len(plan.chain.stages)
    if row.names != tuple(stage.name for stage in plan.chain.stages):
        raise PipelineError(
            f"staged: got a plan of {layers} layers, the model has {len(row.stages)} others; allowed: a plan of this "
            "very model; plan again"
        )
    return tuple(_stage_module(row, plan, number) for number in range(len(plan.partition.parts)))


def scheduled(
    model: nn.Module, plan: PipelinePlan, sample: Any, *, loss: Loss, schedule: str | None = None, group: Any = None
) -> Any:
    """Return torch's schedule of this rank's stage. See `trainwright.memory.scheduled`."""
    own_places = (*PATTERNS, "interleaved")
    if schedule is None:  # zero-bubble is 1F1B, as torch has it, of the same stages in the same memory
        schedule = "1f1b" if plan.schedule == "zero-bubble" else plan.schedule
    kinds = {
        "1f1b": Schedule1F1B,
        "gpipe": ScheduleGPipe,
        "interleaved": ScheduleInterleaved1F1B,
        **dict.fromkeys(PATTERNS, _PipelineScheduleRuntime),
    }
    single = plan.devices == tuple(range(len(plan.partition.parts)))
    allowed = [name for name in kinds if name == plan.schedule or (single and name not in own_places)]
    if schedule not in allowed:
        raise PipelineError(f"schedule: got {schedule!r}; allowed to run with this plan: {', '.join(allowed)}")
    if schedule == "gpipe" and plan.partition.way != "none":
        # GPipe holds all micro-batches on every stage: more than a plan for 1F1B has counted.
        flying = [in_flight("gpipe", stage=0, stages=1, microbatches=plan.microbatches)] * len(plan.partition.parts)
        parts = tuple(replace(part, flying=many) for part, many in zip(plan.partition.parts, flying, strict=True))
        plan = replace(plan, partition=replace(plan.partition, parts=parts))
    pieces = staged(model, plan)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    places = plan.devices if schedule in own_places else tuple(range(len(pieces)))
    if ranks != len({*places}):
        raise PipelineError(
            f"group: got {ranks} ranks for {len(pieces)} stages on {len({*places})} devices; allowed: a rank for each "
            "device"
        )
    shapes = _boundary_samples(model, pieces, sample)
    device = next(model.parameters()).device
    own = [
        PipelineStage(
            pieces[number], number, len(pieces), device, input_args=shapes[number], output_args=shapes[number + 1],
            group=group,
        )
        for number, place in enumerate(places) if place == rank
    ]  # fmt: skip
    if schedule not in PATTERNS:
        stages: Any = own if schedule == "interleaved" else own[0]
        return kinds[schedule](stages, n_microbatches=plan.microbatches, loss_fn=loss)
    made = _PipelineScheduleRuntime(own, n_microbatches=plan.microbatches, loss_fn=loss)
    with TemporaryDirectory() as folder:
        order = Path(folder) / "order.csv"
        write_file(order, plan.to_csv())
        made._load_csv(str(order))  # noqa: SLF001  torch has no public loader; the test of two ranks pins it
    return made


def part_operations(chain: Chain, plan: PipelinePlan, number: int) -> tuple[Operation, ...]:
    """Return the fastest operations found for one micro-batch of a stage (from 0), within the device's memory."""
    part = plan.partition.parts[number]
    final = part.last == len(chain.stages)
    own = replace(
        chain,
        stages=chain.stages[part.first - 1 : part.last],
        loss=chain.loss if final else NO_LOSS,
        input_bytes=0,
        input_gradient_bytes=chain.stages[part.first - 2].output_gradient_bytes if part.first > 1 else 0,
        fixed={},
        plain_peak_bytes=None,
    )
    end = len(chain.steps) if final else part.last
    # Room for one micro-batch: without what is sent and received, and without the inputs of all in flight.
    borders = 2 * (input_bytes(chain, part.first) + (0 if final else own.stages[-1].output_bytes))
    weights = weight_bytes(chain, part.first, end, plan.weights)
    room = plan.memory_bytes - borders - part.flying * input_bytes(chain, part.first) - weights
    best: tuple[float, tuple[Operation, ...]] | None = None
    least = room
    for operations in _candidate_operations(own):
        simulation = simulate(own, operations)
        needed = simulation.peak_bytes + (part.flying - 1) * _held_bytes(own, operations)
        least = min(least, room - needed)
        if needed <= room and (best is None or simulation.seconds < best[0]):
            best = simulation.seconds, operations
    if best is None:
        raise PipelineError(
            f"stage {number + 1}: got {plan.memory_bytes} bytes of memory, its operations need {-least} more; allowed: "
            "more memory, fewer micro-batches in flight, or more stages"
        )
    return best[1]


def _stage_module(row: StageRow, plan: PipelinePlan, number: int) -> nn.Module:
    part = plan.partition.parts[number]
    first, last = part.first - 1, part.last
    own = StageRow(
        stages=row.stages[first:last],
        names=row.names[first:last],
        tuples=row.tuples,
        bind=row.bind if number == 0 else lambda *values: values,
        again=row.again,
    )
    operations = part_operations(plan.chain, plan, number)
    module = _Part(own)
    keeps = (
        sum(operation.kind in {OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP} for operation in operations) == 0
    )
    return module if keeps else carry_out(module, own, operations, result=_hand_over)


class _Part(nn.Module):
    """Layers in a row, as one stage."""

    def __init__(self, row: StageRow) -> None:
        super().__init__()
        self.layers = nn.ModuleList(row.stages)
        self.row = row

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        value: Any = self.row.bind(*args, **kwargs)
        for number in range(1, len(self.layers) + 1):
            value, _ = self.row.run(number, value)
        return _hand_over(value)


def _hand_over(value: Any) -> Any:
    """Return what a stage hands on as torch's pipelining wants it: one tensor, or a tuple of them."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _candidate_operations(chain: Chain) -> Iterator[tuple[Operation, ...]]:
    """Yield ways to run a stage's layers for one micro-batch."""
    everything, (lowest, least) = keep_all(chain), lowest_plan(chain)
    full = simulate(chain, everything).peak_bytes
    step = max(1, (full - least) // _LEVELS)
    solved = [solve_persistent(chain, budget, slots=200) for budget in range(least, full, step)]
    found = dict.fromkeys([everything, lowest, *(each.operations for each in solved if each is not None)])
    yield from found
    count = len(chain.stages)
    sweep = [
        Operation(OperationKind.FORWARD_KEEP if each == 1 else OperationKind.FORWARD_DROP, each)
        for each in range(1, count + 1)
    ]
    loss = [Operation(OperationKind.FORWARD_ALL, count + 1), Operation(OperationKind.BACKWARD, count + 1)]
    # Each of them once more with everything dropped between the forward and the backward.
    for operations in found:
        rest = [operation for operation in operations if operation.stage <= count]
        yield (*sweep, *loss, Operation(OperationKind.DELETE, count, Value.OUTPUT), *rest)


def _held_bytes(chain: Chain, operations: Sequence[Operation]) -> int:
    """Return the bytes that are alive when the loss begins, which a stage holds for each micro-batch in flight."""
    alive: dict[tuple[Value, int], int] = {}
    for operation in operations:
        stage, number = chain.steps[operation.stage - 1], operation.stage
        if number > len(chain.stages):
            break
        if operation.kind is OperationKind.FORWARD_ALL:
            alive[Value.SAVED, number] = stage.choices[operation.option].saved_bytes
        elif operation.value is None:
            alive[Value.OUTPUT, number] = stage.output_bytes
            if operation.kind is OperationKind.FORWARD_DROP:
                alive.pop((Value.OUTPUT, number - 1), None)
        elif operation.kind is OperationKind.DELETE:
            alive.pop((operation.value, number), None)
    return sum(alive.values())


def _boundary_samples(model: nn.Module, pieces: Sequence[nn.Module], sample: Any) -> list[tuple[torch.Tensor, ...]]:
    """Return an empty micro-batch for each boundary between stages; the model is as before."""
    found: list[tuple[torch.Tensor, ...]] = []
    with restored_after(model), torch.no_grad():
        value: Any = call_with(lambda *args: args, sample)
        for place, piece in enumerate((None, *pieces)):
            if piece is not None:
                value = piece(*value)
            value = value if isinstance(value, tuple) else (value,)
            odd = next((each for each in value if not isinstance(each, torch.Tensor)), None)
            if odd is not None:
                raise PipelineError(
                    f"stage {place}: hands on {type(odd).__name__}; allowed between pipeline stages: tensors"
                )
            wants = [place > 0 and each.is_floating_point() for each in value]
            found.append(
                tuple(torch.empty_like(each, requires_grad=want) for each, want in zip(value, wants, strict=True))
            )
    return found
