"""What others do beside torch's checkpointing: Chen's square roots and bytes.

All are lists of operations for the same simulator, so that plans are compared on the same terms.
"""

import math

from trainwright.model.chain import Chain
from trainwright.plan.memory.known_plans import checkpointing_plans, segments, sequential
from trainwright.plan.memory.operations import Operation
from trainwright.plan.memory.simulate import simulate

__all__ = ["best_baseline", "chen_begins", "chen_bytes", "suite"]

Operations = tuple[Operation, ...]


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


def suite(chain: Chain) -> dict[str, Operations]:
    """Return all baselines that need no budget, by name."""
    length = len(chain.stages)
    total = sum(step.saved_bytes for step in chain.stages)
    found = checkpointing_plans(chain)
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
    return best
