"""Optimal plans of short chains, persistent or not, by A*; and a proof of how far any plan can be from the optimum.

A state is the set of bare outputs, the set of saved values (with their options), and the stage whose gradient has
arrived. Edges are forwards, the backward, and deletions at no cost. The estimate of what remains is admissible and
consistent: the backward of every stage to come, and the forward of those whose saved values are not alive.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from trainwright.kernels import Ints, compiled
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
from trainwright.plan.memory.sizes import Sizes, sizes_of

__all__ = ["SearchResult", "list_operations", "search_plans", "solve_exact"]


@compiled
def _read_state(sizes: Sizes, code: int, gradient: int, powers: Ints, digit: Ints) -> tuple[int, float]:
    """Write the digits of a state, and return the bytes that are alive and the least seconds that remain."""
    used, rest, base = sizes.output_gradient[gradient] + sizes.later_gradients[gradient], 0.0, powers[1]
    for i in range(1, sizes.no_grad_forward.size + 1):
        digit[i] = (code // powers[i - 1]) % base
        o = sizes.first[i - 1] + digit[i] - 2
        if digit[i] == 1:
            used += sizes.output[i]
        elif digit[i] > 1:
            used += sizes.saved[o]
        # A stage that is saved needs its backward alone; another at least its cheapest forward and backward.
        if i <= gradient:
            rest += min(sizes.backward[o], sizes.cheapest[i - 1]) if digit[i] > 1 else sizes.cheapest[i - 1]
    return used, rest


@compiled
def _take_step(
    sizes: Sizes, step: tuple[int, int, int], free: int, powers: Ints, digit: Ints
) -> tuple[int, float, float]:
    """Return what an operation changes: the digits, its seconds (-1: it cannot run), the estimate of what remains.

    `step` is its kind, stage and option, `free` the bytes that are not in use. The estimate is the backward and, where
    not saved, the forward of each stage.
    """
    kind, i, option = step
    ready = i == 1 or digit[i - 1] > 0
    o = sizes.first[i - 1] + (option if kind == FORWARD_ALL else digit[i] - 2)
    least = sizes.cheapest[i - 1]
    if kind == BACKWARD:
        # A backward makes the gradient of its input and those of its own parameters.
        made = sizes.output_gradient[i - 1] + sizes.later_gradients[i - 1] - sizes.later_gradients[i]
        if digit[i] < 2 or not ready or made + sizes.backward_temporary[o] > free:
            return 0, -1.0, 0.0
        change = -digit[i] * powers[i - 1]
        if i > 1 and digit[i - 1] == 1:  # nobody reads it any more
            change -= powers[i - 2]
        return change, sizes.backward[o], -min(sizes.backward[o], least)
    if kind == FORWARD_ALL:
        # Saved values include the output, so that a bare output is dropped first.
        bare = sizes.output[i] if digit[i] == 1 else 0
        if digit[i] > 1 or not ready or sizes.saved[o] + sizes.temporary[o] - bare > free:
            return 0, -1.0, 0.0
        change = (2 + option - digit[i]) * powers[i - 1]
        return change, sizes.forward[o], min(sizes.backward[o], least) - least
    if kind == FORWARD_KEEP:
        if digit[i] or not ready or sizes.output[i] + sizes.no_grad_temporary[i - 1] > free:
            return 0, -1.0, 0.0
        return powers[i - 1], sizes.no_grad_forward[i - 1], 0.0
    if not digit[i]:
        return 0, -1.0, 0.0
    # Without what is dropped, a forward has to be paid again.
    again = least - min(sizes.backward[o], least) if digit[i] > 1 else 0.0
    return -digit[i] * powers[i - 1], 0.0, again


@compiled
def search_plans(sizes: Sizes, room: int, bound: float, base: int, limit: int) -> tuple[Ints, float, float]:
    """Return the operations (kind, stage from 1, option), their seconds (inf: none below `bound`), a lower bound.

    A state holds a digit for each stage (0 nothing, 1 the bare output, 2 + o saved by option o) and the gradient's
    stage. `limit` is the number of states, beyond which the search ends with the lower bound that it has reached.
    """
    output_gradient, later_gradients = sizes.output_gradient, sizes.later_gradients
    cheapest, first, backward, saved = sizes.cheapest, sizes.first, sizes.backward, sizes.saved
    n = sizes.no_grad_forward.size
    # A state is one number: digits in base `base`, and the gradient's stage above them.
    powers = np.ones(n + 2, np.int64)
    for i in range(1, n + 2):
        powers[i] = powers[i - 1] * base
    top = powers[n]  # state = digits + top * gradient; the digit of stage i has weight powers[i - 1]
    start = top * n
    # Of each state: its number, least cost, whether it is settled, and the parent, kind, stage and option it came by.
    places, states, cost, closed, came = {start: 0}, [start], [0.0], [False], [(0, 0, 0, 0)]
    heap = [(float(cheapest.sum()), 0)]
    digit = np.zeros(n + 1, np.int64)
    proven = 0.0
    # The least estimate in the heap is a lower bound of every plan, for the estimate is admissible.
    while heap:
        proven, node = heapq.heappop(heap)
        # A state may stand in the heap several times; it is closed at its least cost, as the estimate is consistent.
        if closed[node]:
            continue
        closed[node] = True
        gradient = states[node] // top
        if gradient == 0:
            # The way here, from its end.
            seconds, at = cost[node], len(states)
            steps = np.empty((at, 3), np.int64)
            while node:
                at -= 1
                node, steps[at, 0], steps[at, 1], steps[at, 2] = came[node]
            return steps[at:], seconds, seconds
        if proven >= bound or len(states) > limit:
            break
        used, rest = _read_state(sizes, states[node] - top * gradient, gradient, powers, digit)
        # The backward that can run now: where it frees as much as it takes, nothing is gained by waiting.
        alone = False
        if digit[gradient] > 1 and (gradient == 1 or digit[gradient - 1]):
            o = first[gradient - 1] + digit[gradient] - 2
            made = output_gradient[gradient - 1] + later_gradients[gradient - 1] - later_gradients[gradient]
            if used + made + sizes.backward_temporary[o] <= room:
                alone = made <= saved[o] + output_gradient[gradient] and backward[o] <= cheapest[gradient - 1]
        for kind in (BACKWARD, FORWARD_ALL, FORWARD_KEEP, DELETE):
            if alone and kind != BACKWARD:
                break
            # No bare output of the stage whose gradient has arrived: nobody would read it.
            for i in range(gradient if kind == BACKWARD else 1, gradient + (kind != FORWARD_KEEP)):
                options = first[i] - first[i - 1] if kind == FORWARD_ALL else 1
                for option in range(options):
                    change, spent, left = _take_step(sizes, (kind, i, option), room - used, powers, digit)
                    if spent < 0:
                        continue
                    state, left = states[node] + change, rest + left
                    if kind == BACKWARD:
                        state -= top
                    reached = cost[node] + spent
                    if reached + left >= bound:
                        continue
                    # Keep the state if it is new, or reached at a lower cost than before.
                    other = places[state] if state in places else -1  # noqa: SIM401  numba's `get` may be None
                    if other >= 0 and (closed[other] or cost[other] <= reached):
                        continue
                    if other < 0:
                        places[state] = other = len(states)
                        states.append(state)
                        cost.append(reached)
                        closed.append(False)
                        came.append((node, kind, i, option))
                    cost[other], came[other] = reached, (node, kind, i, option)
                    heapq.heappush(heap, (reached + left, other))
    return np.empty((0, 3), np.int64), np.inf, min(proven, bound) if heap else bound


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
