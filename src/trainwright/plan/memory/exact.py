"""The best of all plans of a short chain, persistent or not, by A*; and a proof of how far any plan can be from it.

A state is the set of bare outputs, the set of saved values (with their options), and the stage whose gradient has
arrived. Edges are forwards, the backward, and deletions at no cost. The estimate of what remains is admissible and
consistent: the backward of every stage to come, and the forward of those whose saved values are not alive.
"""

import math
from dataclasses import dataclass

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import (
    BACKWARD,
    DELETE,
    FORWARD_ALL,
    FORWARD_KEEP,
    Operation,
    OperationKind,
    Value,
)
from trainwright.plan.memory.sizes import sizes_of

__all__ = ["SearchResult", "list_operations", "solve_exact"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """What a search has found: a plan better than its bound, or None, and what no plan can be faster than."""

    operations: tuple[Operation, ...] | None
    seconds: float
    lower_seconds: float
    finished: bool


def solve_exact(
    chain: Chain, budget_bytes: int, *, better_than_seconds: float = math.inf, states: int = 3_000_000
) -> SearchResult:
    """Search for the fastest plan within a budget (fixed bytes included) that takes less than a known one.

    The number of states grows like (options + 2)^L; beyond `states` of them the search ends unfinished, and its lower
    bound holds all the same. A finished search without operations proves that nothing is better than the known plan,
    or, without one, that the budget is infeasible.
    """
    from trainwright.plan.memory._exact import search_plans

    # A state is packed into 62 bits: a digit of this base for each stage, and the gradient's stage.
    base = 2 + max(len(stage.options) + 1 for stage in chain.steps)
    room = budget_bytes - chain.fixed_bytes
    if (len(chain.steps) + 1) * math.log2(base) > 61 or room < 0:
        return SearchResult(operations=None, seconds=math.inf, lower_seconds=0.0, finished=room < 0)
    rows, seconds, lower = search_plans(sizes_of(chain), room, better_than_seconds, base, states)
    found = math.isfinite(seconds)
    return SearchResult(
        operations=list_operations(rows.tolist()) if found else None,
        seconds=float(seconds),
        lower_seconds=float(lower),
        finished=found or lower >= better_than_seconds,
    )


def list_operations(rows: list[list[int]]) -> tuple[Operation, ...]:
    """Write a path as operations: what is dropped is dropped by name, or by the forward that read it."""
    operations: list[Operation] = []
    alive: dict[int, Value] = {}
    for kind, stage, option in rows:
        if kind == DELETE:
            value = alive.pop(stage)
            # A bare output that goes right after its reader is dropped by that forward.
            if value is Value.OUTPUT and operations[-1] == Operation(OperationKind.FORWARD_KEEP, stage + 1):
                operations[-1] = Operation(OperationKind.FORWARD_DROP, stage + 1)
            else:
                operations.append(Operation(OperationKind.DELETE, stage, value))
            continue
        before = stage if kind == FORWARD_ALL else stage - 1 if kind == BACKWARD else 0
        if kind == BACKWARD:
            operations.append(Operation(OperationKind.BACKWARD, stage))
            del alive[stage]
        # A bare output goes where its saved values are made, and with the backward that reads it last.
        if alive.get(before) is Value.OUTPUT:
            operations.append(Operation(OperationKind.DELETE, before, alive.pop(before)))
        if kind == FORWARD_ALL:
            operations.append(Operation(OperationKind.FORWARD_ALL, stage, None, option))
            alive[stage] = Value.SAVED
        elif kind == FORWARD_KEEP:
            operations.append(Operation(OperationKind.FORWARD_KEEP, stage))
            alive[stage] = Value.OUTPUT
    return tuple(operations)
