"""Kernel of the exact search: A* over which values are alive and which gradient has arrived; see `exact`."""

import numpy as np

from trainwright.kernels import Ints, compiled
from trainwright.plan.memory._queue import EMPTY, build_table, find_slot, path_to, pop_heap, push_heap
from trainwright.plan.memory.sizes import Sizes

__all__ = ["search_plans"]

FORWARD_ALL, FORWARD_KEEP, BACKWARD, DELETE = 0, 1, 3, 4


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
def search_plans(sizes: Sizes, room: int, bound: float, base: int, limit: int) -> tuple[Ints, float, float]:
    """Return the operations (kind, stage from 1, option), their seconds (inf: none below `bound`), a lower bound.

    A state holds a digit for each stage (0 nothing, 1 the bare output, 2 + o saved by option o) and the gradient's
    stage. `limit` is the number of states, beyond which the search ends with the lower bound that it has reached.
    """
    output, output_gradient = sizes.output, sizes.output_gradient
    no_grad_temporary, no_grad_forward = sizes.no_grad_temporary, sizes.no_grad_forward
    cheapest, first = sizes.cheapest, sizes.first
    forward, backward, saved = sizes.forward, sizes.backward, sizes.saved
    temporary, backward_temporary = sizes.temporary, sizes.backward_temporary
    later_gradients = sizes.later_gradients
    n = no_grad_forward.size
    powers = np.ones(n + 2, np.int64)
    for i in range(1, n + 2):
        powers[i] = powers[i - 1] * base
    capacity = 1024
    states, cost, closed = np.zeros(capacity, np.int64), np.zeros(capacity), np.zeros(capacity, np.bool_)
    came = np.zeros((capacity, 4), np.int64)  # parent, kind, stage, option
    heap, nodes, size = np.zeros(capacity), np.zeros(capacity, np.int64), 0
    top = powers[n]  # state = digits + top * gradient; the digit of stage i has weight powers[i - 1]
    states[0] = top * n
    count = 1
    table, holder = build_table(states, count, 4 * capacity)
    size = push_heap(heap, nodes, size, cheapest.sum(), 0)
    digit = np.zeros(n + 1, np.int64)
    proven = 0.0
    # The least estimate in the heap is a lower bound of every plan, for the estimate is admissible.
    while size:
        proven, node = heap[0], nodes[0]
        size = pop_heap(heap, nodes, size)
        # A state may stand in the heap several times; it is closed at its least cost, as the estimate is consistent.
        if closed[node]:
            continue
        closed[node] = True
        gradient = states[node] // top
        if gradient == 0:
            return path_to(came, node), cost[node], cost[node]
        if proven >= bound or count > limit:
            break
        used, rest = _read_state(sizes, states[node] - top * gradient, gradient, powers, digit)
        # Room for every neighbour of this state in the heap, the list of states and the hash table.
        if size + 4 * n * base + 8 > heap.size:
            heap = np.concatenate((heap, np.zeros(heap.size + 4 * n * base)))
            nodes = np.concatenate((nodes, np.zeros(nodes.size + 4 * n * base, np.int64)))
        if count + 4 * n * base + 8 > states.size:
            more = states.size + 4 * n * base
            states = np.concatenate((states, np.zeros(more, np.int64)))
            cost, closed = np.concatenate((cost, np.zeros(more))), np.concatenate((closed, np.zeros(more, np.bool_)))
            came = np.concatenate((came, np.zeros((more, 4), np.int64)))
        if 2 * (count + 4 * n * base) > table.size:
            table, holder = build_table(states, count, 4 * table.size)
        # The backward that can run now: where it frees as much as it takes, nothing is gained by waiting.
        alone = False
        if digit[gradient] > 1 and (gradient == 1 or digit[gradient - 1]):
            o = first[gradient - 1] + digit[gradient] - 2
            made = output_gradient[gradient - 1] + later_gradients[gradient - 1] - later_gradients[gradient]
            if used + made + backward_temporary[o] <= room:
                alone = made <= saved[o] + output_gradient[gradient] and backward[o] <= cheapest[gradient - 1]
        for kind in (BACKWARD, FORWARD_ALL, FORWARD_KEEP, DELETE):
            if alone and kind != BACKWARD:
                break
            for i in range(gradient if kind == BACKWARD else 1, gradient + 1):
                ready = i == 1 or digit[i - 1] > 0
                options = first[i] - first[i - 1] if kind == FORWARD_ALL else 1
                for option in range(options):
                    state, spent, left = states[node], 0.0, rest
                    o = first[i - 1] + option
                    # `left` estimates what remains after the step: the backward and, where not saved, the forward of
                    # each stage.
                    if kind == BACKWARD:
                        o = first[i - 1] + digit[i] - 2
                        made = output_gradient[i - 1] + later_gradients[i - 1] - later_gradients[i]
                        if digit[i] < 2 or not ready or used + made + backward_temporary[o] > room:
                            continue
                        state -= digit[i] * powers[i - 1] + top
                        if i > 1 and digit[i - 1] == 1:  # nobody reads it any more
                            state -= powers[i - 2]
                        spent, left = backward[o], rest - min(backward[o], cheapest[i - 1])
                    elif kind == FORWARD_ALL:
                        # Saved values include the output, so that a bare output is dropped first.
                        bare = output[i] if digit[i] == 1 else 0  # dropped first
                        if digit[i] > 1 or not ready or used - bare + saved[o] + temporary[o] > room:
                            continue
                        state += (2 + option - digit[i]) * powers[i - 1]
                        spent, left = forward[o], rest - cheapest[i - 1] + min(backward[o], cheapest[i - 1])
                    elif kind == FORWARD_KEEP:
                        if i == gradient or digit[i] or not ready or used + output[i] + no_grad_temporary[i - 1] > room:
                            continue
                        state += powers[i - 1]
                        spent = no_grad_forward[i - 1]
                    else:
                        if not digit[i]:
                            continue
                        state -= digit[i] * powers[i - 1]
                        if digit[i] > 1:
                            o = first[i - 1] + digit[i] - 2
                            left = rest + cheapest[i - 1] - min(backward[o], cheapest[i - 1])
                    reached = cost[node] + spent
                    if reached + left >= bound:
                        continue
                    # Keep the state if it is new, or reached at a lower cost than before.
                    place = find_slot(table, state)
                    known = table[place] != EMPTY
                    other = holder[place] if known else count
                    if known and (closed[other] or cost[other] <= reached):
                        continue
                    if not known:
                        table[place], holder[place], states[other] = state, count, state
                        count += 1
                    cost[other] = reached
                    came[other] = (node, kind, i, option)
                    size = push_heap(heap, nodes, size, reached + left, other)
    return np.empty((0, 3), np.int64), np.inf, min(proven, bound) if size else bound
