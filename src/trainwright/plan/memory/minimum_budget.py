"""The least budget in which a chain can be trained at all when values may wait on the host, and a plan for it.

Every stage must once run with gradients and once backward, each beside its input: the bare output of the stage before
it, at best. So no plan needs less than the largest of these; the plan below needs no more, but for forwards without
gradients whose temporaries are larger than those with. Outputs leave for the host in a first sweep; backwards fetch
their input and run the stage again, or, where the gradient that has arrived leaves no room for that, fetch what the
sweep has saved.
"""

import math

from trainwright.model.chain import Chain
from trainwright.plan.memory.link import Link
from trainwright.plan.memory.operations import Operation, OperationKind, Value, offload, prefetch
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.skip_connections import fold_skips

__all__ = ["largest_stage", "lowest_with_copies"]


def lowest_with_copies(chain: Chain) -> tuple[tuple[Operation, ...], int]:
    """Return a plan with copies to the host of the least budget, whatever its time, and that budget in bytes."""
    last = len(chain.steps)
    needs, options, forward_needs = _stage_needs(chain)
    least = max(needs)
    listed: list[Operation] = []
    # Stages whose forward does not fit beside the gradient that has arrived are saved in the first sweep.
    early = {stage for stage in range(1, last + 1) if forward_needs[stage] > least}
    # The sweep: every output leaves for the host.
    for stage in range(1, last + 1):
        if stage in early:
            listed += [Operation(OperationKind.FORWARD_ALL, stage, None, options[stage]), offload(Value.SAVED, stage)]
        if stage < last:
            listed.append(Operation(OperationKind.FORWARD_KEEP, stage))
        if stage > 1:
            listed.append(offload(Value.OUTPUT, stage - 1))
    # Backwards: fetch the input, then fetch the saved values or run the stage again.
    for stage in range(last, 0, -1):
        if stage > 1:
            listed.append(prefetch(Value.OUTPUT, stage - 1))
        again = Operation(OperationKind.FORWARD_ALL, stage, None, options[stage])
        listed += [prefetch(Value.SAVED, stage) if stage in early else again, Operation(OperationKind.BACKWARD, stage)]
        if stage > 1:
            listed.append(Operation(OperationKind.DELETE, stage - 1, Value.OUTPUT))
    if chain.skips:
        return tuple(listed), simulate(chain, listed, link=Link(to_host=math.inf, to_device=math.inf)).peak_bytes
    return tuple(listed), least + chain.fixed_bytes


def largest_stage(chain: Chain) -> int:
    """Return the stage, the loss the last, that no plan with copies can do with less for."""
    needs = _stage_needs(chain)[0]
    return needs.index(max(needs))


def _stage_needs(chain: Chain) -> tuple[list[int], list[int], list[int]]:
    """Return, by stage from 1, the bytes that it needs alone, the option that needs them, and those of its forward."""
    chain = fold_skips(chain)
    steps, last = chain.steps, len(chain.steps)
    grown, gradient = 0, chain.loss.output_gradient_bytes
    least, options, forward_needs = [0] * (last + 1), [0] * (last + 1), [0] * (last + 1)
    for stage in range(last, 0, -1):
        step = steps[stage - 1]
        before = steps[stage - 2].output_bytes if stage > 1 else 0
        made = steps[stage - 2].output_gradient_bytes if stage > 1 else chain.input_gradient_bytes
        needs = []
        for each in step.choices:
            forward = before + each.saved_bytes + each.forward_temporary_bytes
            arrived = gradient + grown
            more = made + step.parameter_gradient_bytes + each.backward_temporary_bytes
            # In the sweep only the loss's gradient is alive; in the backward the gradients that arrive and are made.
            sweep = forward + chain.loss.output_gradient_bytes
            needs.append((max(sweep, before + each.saved_bytes + arrived + more), forward + arrived))
        least[stage], forward_needs[stage] = min(needs)
        options[stage] = needs.index((least[stage], forward_needs[stage]))
        if stage < last:
            plain = before + step.output_bytes + step.no_grad_temporary_bytes + chain.loss.output_gradient_bytes
            least[stage] = max(least[stage], plain)
        grown, gradient = grown + step.parameter_gradient_bytes, made
    return least, options, forward_needs
