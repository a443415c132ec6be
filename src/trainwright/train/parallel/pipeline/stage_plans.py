"""Plans recomputation in pipeline stages, so that all stages of a device keep to its memory budget together.

A stage runs the forward of several micro-batches before the first backward. So it is planned for both halves of one:
what a micro-batch holds between them counts once for each in flight, its own peak once. Candidates are the persistent
plans of the stage's layers at several memories, as they are and with everything dropped in between.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import nn

from trainwright.errors import PipelineError
from trainwright.model.chain import Chain
from trainwright.model.trace.step import Call
from trainwright.plan.byte_sizes import format_bytes, read_budget
from trainwright.plan.memory.known_plans import keep_all, lowest_plan
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.memory.simulate import simulate
from trainwright.train.parallel.recompute.entry import carry_out
from trainwright.train.parallel.recompute.measure import measure_chain
from trainwright.train.parallel.recompute.program import remade_operations

__all__ = ["StageWay", "choose_operations", "plan_stages", "ways_to_run"]

_LEVELS = 12
_RERUN = {OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP}
Operations = tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class StageWay:
    """A way to run a stage: its peak with all micro-batches in flight, and the seconds of one of them."""

    peak_bytes: int
    seconds: float
    operations: Operations


def plan_stages(
    stages: Mapping[int, nn.Module],
    inputs: Mapping[int, Sequence[Any]],
    *,
    in_flight: Mapping[int, int],
    budget: str | float,
    state_bytes: int,
) -> dict[int, nn.Module]:
    """Return the stages of a device as modules that train within its budget, with the gradients of the stages.

    `inputs` are those of a micro-batch, by which each stage is measured; the last stage makes the loss. `state_bytes`
    is the optimizer's. Raises `PipelineError` where nothing fits.
    """
    # Gradients of micro-batches add up: those of all stages are there while any of them runs.
    chains = {
        index: measure_chain(stage, Call(tuple(inputs[index]), {}), accumulate=True) for index, stage in stages.items()
    }
    ways = {index: ways_to_run(chain, in_flight[index]) for index, chain in chains.items()}
    full_bytes = state_bytes + sum(plain.peak_bytes for plain, *_ in ways.values())
    chosen = choose_operations(ways, read_budget(budget, full_bytes) - state_bytes)
    return {
        index: carry_out(
            stage, [each.name for each in chains[index].stages], chosen[index], remade=remade_operations(chains[index])
        )
        if any(each.kind in _RERUN or each.option for each in chosen[index])
        else stage
        for index, stage in stages.items()
    }


def choose_operations(ways: Mapping[int, Sequence[StageWay]], room_bytes: int) -> dict[int, Operations]:
    """Return how to run each stage of a device so that their peaks together fit, with the least time found.

    All begin with their fastest way. While they do not fit, the stage moves to a way of less memory that saves most
    bytes a second lost.
    """
    chosen = {index: min(found, key=lambda way: (way.seconds, way.peak_bytes)) for index, found in ways.items()}
    while (over := sum(way.peak_bytes for way in chosen.values()) - room_bytes) > 0:
        # Bytes saved for each second lost. A move that loses no time is worth most.
        moves = [
            ((now.peak_bytes - way.peak_bytes) / max(way.seconds - now.seconds, 1e-12), index, place)
            for index, now in chosen.items()
            for place, way in enumerate(ways[index])
            if way.peak_bytes < now.peak_bytes
        ]
        if not moves:
            raise PipelineError(
                f"memory: got a budget that the pipeline stages of a device miss by {format_bytes(over)}; allowed: "
                "more memory, fewer micro-batches in flight, or more stages"
            )
        _, index, place = max(moves)
        chosen[index] = ways[index][place]
    return {index: way.operations for index, way in chosen.items()}


def ways_to_run(chain: Chain, in_flight: int) -> list[StageWay]:
    """Return the ways to run a stage, first that without reruns; what waits of each micro-batch counts on top."""
    found = []
    for operations in _candidate_operations(chain):
        simulation = simulate(chain, operations)
        # The peak has one micro-batch; each of the others holds its input, what it saved, and what lies between stages.
        held = _held_bytes(chain, operations) + chain.fixed.get("between stages", 0)
        waiting = (in_flight - 1) * (held + chain.input_bytes)
        found.append(StageWay(simulation.peak_bytes + waiting, simulation.seconds, operations))
    return found


def _candidate_operations(chain: Chain) -> Iterator[Operations]:
    everything, (lowest, least) = keep_all(chain), lowest_plan(chain)
    full = simulate(chain, everything).peak_bytes
    step = max(1, (full - least) // _LEVELS)
    solved = [solve_persistent(chain, budget, slots=200) for budget in range(least, full, step)]
    found = dict.fromkeys([everything, lowest, *(each.operations for each in solved if each is not None)])
    yield from found
    # Each of them once more with everything dropped between the forward and the backward.
    count = len(chain.stages)
    sweep = [
        Operation(OperationKind.FORWARD_KEEP if each == 1 else OperationKind.FORWARD_DROP, each)
        for each in range(1, count + 1)
    ]
    loss = [Operation(OperationKind.FORWARD_ALL, count + 1), Operation(OperationKind.BACKWARD, count + 1)]
    for operations in found:
        # The sweep has run the loss, so that only the stage itself runs again.
        rest = [operation for operation in operations if operation.stage <= count]
        yield (*sweep, *loss, Operation(OperationKind.DELETE, count, Value.OUTPUT), *rest)


def _held_bytes(chain: Chain, operations: Sequence[Operation]) -> int:
    """Return the bytes that are alive when the loss begins, which a stage holds for each micro-batch in flight."""
    # With the loss the backward begins: what is alive then, without what is fixed, is what waits.
    before = list(takewhile(lambda operation: operation.stage <= len(chain.stages), operations))
    return simulate(chain, before).end_bytes - chain.fixed_bytes - chain.loss.output_gradient_bytes
