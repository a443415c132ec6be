"""What torch's checkpointing does: keep everything, recompute every block, or k equal segments.

All are lists of operations for the simulator, so that plans are compared with them on the same terms.
"""

from collections.abc import Sequence

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Operation, OperationKind, Value

__all__ = ["checkpointing_plans", "every_block", "keep_all", "segments", "sequential", "sequential_begins"]

Operations = tuple[Operation, ...]


def keep_all(chain: Chain) -> Operations:
    """Keep everything: each stage forward by its fastest option, then all backwards."""
    fastest = [
        min(range(len(step.choices)), key=lambda o: step.choices[o].forward_seconds + step.choices[o].backward_seconds)
        for step in chain.steps
    ]
    count = len(fastest)
    forwards = [Operation(OperationKind.FORWARD_ALL, stage, None, fastest[stage - 1]) for stage in range(1, count + 1)]
    return (*forwards, *(Operation(OperationKind.BACKWARD, stage) for stage in range(count, 0, -1)))


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


def every_block(chain: Chain) -> Operations:
    """Keep only the outputs of all stages, and run each forward again right before its backward."""
    return segments(chain, range(1, len(chain.steps) + 1))


def sequential(chain: Chain, count: int) -> Operations:
    """Run `count` segments of floor(L / count) stages, the last with the rest, as torch's checkpoint_sequential."""
    return segments(chain, sequential_begins(chain, count))


def sequential_begins(chain: Chain, count: int) -> list[int]:
    """Return where the segments of `sequential` begin."""
    width = len(chain.stages) // count
    return [1 + width * each for each in range(count)]


def checkpointing_plans(chain: Chain) -> dict[str, Operations]:
    """Return all plans of this module, by name."""
    found = {"none": keep_all(chain), "every block": every_block(chain)}
    return found | {f"sequential({count})": sequential(chain, count) for count in range(2, len(chain.stages) + 1)}
