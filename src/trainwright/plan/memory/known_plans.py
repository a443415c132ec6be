"""Baseline plans that need no search: sqrt(n) and sequential checkpointing, and those of minimal memory.

Without copies it is that of the best persistent plan in bytes, by the recurrence of `persistent` without slots.

With copies every stage must once run with gradients and once backward, each beside its input: the bare output of the
stage before it, at best. So no plan needs less than the largest of these; the plan below needs no more, but for
forwards without gradients whose temporaries are larger than those with. Outputs leave for the host in a first sweep;
backwards fetch their input and run the stage again, or, where the gradient that has arrived leaves no room for that,
fetch what the sweep has saved.

Torch's checkpointing recomputes every block, or k equal segments.
"""

from collections.abc import Sequence

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Operation, OperationKind, Value, operations_of
from trainwright.plan.memory.persistent import PlanNode, rows_of_nodes
from trainwright.plan.memory.sizes import sizes_of

__all__ = [
    "checkpointing_plans",
    "first_blocks",
    "keep_all",
    "lowest_plan",
    "lowest_with_copies",
    "segments",
    "sequential",
    "stage_needs",
]


def lowest_plan(chain: Chain) -> tuple[tuple[Operation, ...], int]:
    """Return the persistent plan of the least peak, whatever its time, and that peak in bytes, fixed ones included."""
    from trainwright.plan.memory._dynamic_programs import least_bytes

    need, choices = least_bytes(sizes_of(chain))
    n = len(chain.steps)

    def choose(node: PlanNode) -> tuple[int, int, PlanNode]:
        s, t, *_ = node
        which = int(choices[s * n - s * (s - 1) // 2 + t - s])
        return -1 - which, which, PlanNode(max(s + 1, which), t)

    return operations_of(rows_of_nodes(PlanNode(0, n - 1), choose)), int(need[n - 1]) + chain.fixed_bytes


def lowest_with_copies(chain: Chain) -> tuple[tuple[Operation, ...], int]:
    """Return a plan with copies to the host of the least budget, whatever its time, and that budget in bytes."""
    last = len(chain.steps)
    needs, options, forward_needs = stage_needs(chain)
    least = max(needs)
    listed: list[Operation] = []
    # Stages whose forward does not fit beside the gradient that has arrived are saved in the first sweep.
    early = {stage for stage in range(1, last + 1) if forward_needs[stage] > least}
    # The sweep: every output leaves for the host.
    for stage in range(1, last + 1):
        if stage in early:
            listed += [
                Operation(OperationKind.FORWARD_ALL, stage, None, options[stage]),
                Operation(OperationKind.OFFLOAD, stage, Value.SAVED),
            ]
        if stage < last:
            listed.append(Operation(OperationKind.FORWARD_KEEP, stage))
        if stage > 1:
            listed.append(Operation(OperationKind.OFFLOAD, stage - 1, Value.OUTPUT))
    # Backwards: fetch the input, then fetch the saved values or run the stage again.
    for stage in range(last, 0, -1):
        if stage > 1:
            listed.append(Operation(OperationKind.PREFETCH, stage - 1, Value.OUTPUT))
        again = Operation(OperationKind.FORWARD_ALL, stage, None, options[stage])
        back = Operation(OperationKind.PREFETCH, stage, Value.SAVED)
        listed += [back if stage in early else again, Operation(OperationKind.BACKWARD, stage)]
        if stage > 1:
            listed.append(Operation(OperationKind.DELETE, stage - 1, Value.OUTPUT))
    return tuple(listed), least + chain.fixed_bytes


def stage_needs(chain: Chain) -> tuple[list[int], list[int], list[int]]:
    """Return, by stage from 1, the bytes that it needs alone, the option that needs them, and those of its forward."""
    steps, last = chain.steps, len(chain.steps)
    grown, gradient = 0, chain.loss.output_gradient_bytes
    least, options, forward_needs = [0] * (last + 1), [0] * (last + 1), [0] * (last + 1)
    for stage in range(last, 0, -1):
        step = steps[stage - 1]
        before = steps[stage - 2].output_bytes if stage > 1 else 0
        made = steps[stage - 2].output_gradient_bytes if stage > 1 else chain.input_gradient_bytes
        needs = []
        for option, each in enumerate(step.choices):
            forward = before + each.saved_bytes + each.forward_temporary_bytes
            arrived = gradient + grown
            more = made + step.parameter_gradient_bytes + each.backward_temporary_bytes
            # In the sweep only the loss's gradient is alive; in the backward the gradients that arrive and are made.
            sweep = forward + chain.loss.output_gradient_bytes
            needs.append((max(sweep, before + each.saved_bytes + arrived + more), forward + arrived, option))
        least[stage], forward_needs[stage], options[stage] = min(needs)
        if stage < last:
            # The sweep runs it without gradients as well, to hand its output on.
            plain = before + step.output_bytes + step.no_grad_temporary_bytes + chain.loss.output_gradient_bytes
            least[stage] = max(least[stage], plain)
        # Gradients of parameters stay; that of the input is what arrives at the stage before.
        grown, gradient = grown + step.parameter_gradient_bytes, made
    return least, options, forward_needs


Operations = tuple[Operation, ...]


def keep_all(chain: Chain) -> Operations:
    """Keep everything: each stage forward by its fastest option, then all backwards."""
    fastest = [
        min(range(len(step.choices)), key=lambda o: step.choices[o].forward_seconds + step.choices[o].backward_seconds)
        for step in chain.steps
    ]
    forwards = [Operation(OperationKind.FORWARD_ALL, stage, None, option) for stage, option in enumerate(fastest, 1)]
    return (*forwards, *(Operation(OperationKind.BACKWARD, stage) for stage in range(len(fastest), 0, -1)))


def segments(chain: Chain, begins: Sequence[int]) -> Operations:
    """Keep only the inputs of segments, which begin at `begins` (1 first); the last, with the loss, is run plainly."""
    ends = [*(begin - 1 for begin in begins[1:]), len(chain.steps)]
    listed: list[Operation] = []
    # Forward through all segments but the last, keeping their inputs alone.
    for begin, end in list(zip(begins, ends, strict=True))[:-1]:
        listed.append(Operation(OperationKind.FORWARD_KEEP, begin))
        listed += [Operation(OperationKind.FORWARD_DROP, stage) for stage in range(begin + 1, end + 1)]
    # Each segment runs again right before its backward.
    for begin, end in reversed(list(zip(begins, ends, strict=True))):
        listed += [Operation(OperationKind.FORWARD_ALL, stage) for stage in range(begin, end + 1)]
        listed += [Operation(OperationKind.BACKWARD, stage) for stage in range(end, begin - 1, -1)]
        if begin > 1:
            listed.append(Operation(OperationKind.DELETE, begin - 1, Value.OUTPUT))
    return tuple(listed)


def first_blocks(chain: Chain, count: int) -> Operations:
    """Keep only the outputs of the first `count` stages, and run each again right before its backward."""
    return segments(chain, range(1, count + 2))


def sequential(chain: Chain, count: int) -> Operations:
    """Run `count` segments of floor(L / count) stages, the last with the rest, as torch's checkpoint_sequential."""
    width = len(chain.stages) // count
    return segments(chain, [1 + width * each for each in range(count)])


def checkpointing_plans(chain: Chain) -> dict[str, Operations]:
    """Return all plans of this module, by name."""
    found = {"none": keep_all(chain), "every block": first_blocks(chain, len(chain.stages))}
    return found | {f"sequential({count})": sequential(chain, count) for count in range(2, len(chain.stages) + 1)}
