"""What others do: keep everything, checkpoint every block, k equal segments, Chen's square roots, revolve.

All are lists of operations for the same simulator, so that plans are compared on the same terms.
"""

import math
from collections.abc import Sequence

from trainwright.memory.chain import Chain
from trainwright.memory.operations import Kind, Operation, Value
from trainwright.memory.persistent import solve_persistent
from trainwright.memory.simulate import simulate

__all__ = [
    "best_baseline",
    "chen_begins",
    "chen_bytes",
    "every_block",
    "keep_all",
    "revolve",
    "segments",
    "sequential",
    "sequential_begins",
    "suite",
]

Operations = tuple[Operation, ...]


def keep_all(chain: Chain) -> Operations:
    """Keep everything: each stage forward by its fastest option, then all backwards."""
    fastest = [
        min(range(len(step.choices)), key=lambda o: step.choices[o].forward_seconds + step.choices[o].backward_seconds)
        for step in chain.steps
    ]
    count = len(fastest)
    forwards = [Operation(Kind.FORWARD_ALL, stage, None, fastest[stage - 1]) for stage in range(1, count + 1)]
    return (*forwards, *(Operation(Kind.BACKWARD, stage) for stage in range(count, 0, -1)))


def segments(chain: Chain, begins: Sequence[int]) -> Operations:
    """Keep only the inputs of segments, which begin at `begins` (1 first); the last, with the loss, is run plainly."""
    ends = [*(begin - 1 for begin in begins[1:]), len(chain.steps)]
    listed: list[Operation] = []
    for begin, end in list(zip(begins, ends, strict=True))[:-1]:
        listed.append(Operation(Kind.FORWARD_KEEP, begin))
        listed += [Operation(Kind.FORWARD_DROP, stage) for stage in range(begin + 1, end + 1)]
    for begin, end in reversed(list(zip(begins, ends, strict=True))):
        listed += [Operation(Kind.FORWARD_ALL, stage) for stage in range(begin, end + 1)]
        listed += [Operation(Kind.BACKWARD, stage) for stage in range(end, begin - 1, -1)]
        if begin > 1:
            listed.append(Operation(Kind.DELETE, begin - 1, Value.OUTPUT))
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


def chen_bytes(chain: Chain, threshold_bytes: float) -> Operations:
    """Close a segment where its saved bytes exceed a threshold (Chen et al., arXiv 1604.06174)."""
    return segments(chain, chen_begins(chain, threshold_bytes))


def chen_begins(chain: Chain, threshold_bytes: float) -> list[int]:
    """Return where the segments of `chen_bytes` begin."""
    begins, running = [1], 0
    for stage, step in enumerate(chain.stages, start=1):
        running += step.saved_bytes
        if running > threshold_bytes and stage < len(chain.stages):
            begins.append(stage + 1)
            running = 0
    return begins


def revolve(chain: Chain, budget_bytes: int, *, slots: int = 500) -> Operations | None:
    """Return the best plan that saves values only right before their backward (revolve, for unequal stages)."""
    solved = solve_persistent(chain, budget_bytes, slots=slots, leaves_only=True)
    return None if solved is None else solved.operations


def suite(chain: Chain) -> dict[str, Operations]:
    """Return all baselines that need no budget, by name."""
    length = len(chain.stages)
    total = sum(step.saved_bytes for step in chain.stages)
    found = {"none": keep_all(chain), "every block": every_block(chain)}
    found |= {f"sequential({count})": sequential(chain, count) for count in range(2, length + 1)}
    found["Chen sqrt(L)"] = sequential(chain, math.ceil(math.sqrt(length)))
    found |= {f"Chen bytes / {part}": chen_bytes(chain, total / part) for part in range(2, min(length, 40) + 1)}
    return found


def best_baseline(chain: Chain, budget_bytes: int) -> tuple[str, float]:
    """Return the fastest baseline within a budget, and its seconds; ("", inf) if none fits."""
    best = ("", math.inf)
    for name, operations in suite(chain).items():
        simulation = simulate(chain, operations, budget_bytes=budget_bytes)
        if simulation.fits and simulation.seconds < best[1]:
            best = (name, simulation.seconds)
    operations_or_none = revolve(chain, budget_bytes)
    if operations_or_none is not None:
        simulation = simulate(chain, operations_or_none, budget_bytes=budget_bytes)
        if simulation.fits and simulation.seconds < best[1]:
            best = ("revolve", simulation.seconds)
    return best
