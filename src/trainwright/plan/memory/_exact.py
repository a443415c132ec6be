"""Kernels of the exact search: A* over which values are alive and which gradient has arrived; see `exact`.

The states stand in an open hash table, those to look at in a heap.
"""

import numpy as np

from trainwright.kernels import Floats, Ints, compiled
from trainwright.plan.memory.operations import BACKWARD, DELETE, FORWARD_ALL, FORWARD_KEEP
from trainwright.plan.memory.sizes import Sizes

__all__ = ["EMPTY", "build_table", "find_slot", "path_to", "pop_heap", "push_heap", "search_plans"]

EMPTY = np.int64(-1)


@compiled
def find_slot(keys: Ints, key: int) -> np.int64:
    """Return where a key stands, or would stand, in an open table whose size is a power of two."""
    mask = keys.size - 1
    # Fibonacci hashing: the golden ratio spreads neighbouring keys over the table.
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    # The lowest bits of a product depend on few bits of the key: higher ones are taken.
    place = np.int64(mixed >> np.uint64(20)) & mask
    # Linear probing.
    while keys[place] not in (EMPTY, key):
        place = (place + 1) & mask
    return place


@compiled
def push_heap(heap: Floats, nodes: Ints, size: int, value: float, node: int) -> int:
    # Sift up: parents that are larger move down.
    child = size
    while child:
        parent = (child - 1) >> 1
        if heap[parent] <= value:
            break
        heap[child], nodes[child] = heap[parent], nodes[parent]
        child = parent
    heap[child], nodes[child] = value, node
    return size + 1


@compiled
def pop_heap(heap: Floats, nodes: Ints, size: int) -> int:
    """Remove the least entry, which the caller has read."""
    size -= 1
    value, node = heap[size], nodes[size]
    # Sift the last entry down from the root: the smaller child moves up.
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[parent], nodes[parent] = heap[child], nodes[child]
        parent = child
    heap[parent], nodes[parent] = value, node
    return size


@compiled
def build_table(states: Ints, count: int, size: int) -> tuple[Ints, Ints]:
    """Return a table of so many places with the first states in it: keys, and the number of each."""
    table, holder = np.full(size, EMPTY), np.zeros(size, np.int64)
    for each in range(count):
        place = find_slot(table, states[each])
        table[place], holder[place] = states[each], each
    return table, holder


@compiled
def path_to(came: Ints, node: int) -> Ints:
    """Return the steps [length, 3] from the first state to a node; a row of `came` is the parent and the step."""
    length, at = 0, node
    while at:
        length, at = length + 1, came[at, 0]
    steps, at = np.empty((length, 3), np.int64), node
    while at:
        length -= 1
        steps[length] = came[at, 1:]
        at = came[at, 0]
    return steps


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
    capacity = 1024
    states, cost, closed = np.zeros(capacity, np.int64), np.zeros(capacity), np.zeros(capacity, np.bool_)
    came = np.zeros((capacity, 4), np.int64)  # parent, kind, stage, option
    heap, nodes, size = np.zeros(capacity), np.zeros(capacity, np.int64), 0
    top = powers[n]  # state = digits + top * gradient; the digit of stage i has weight powers[i - 1]
    states[0] = top * n
    count = 1
    # Open addressing needs many empty places to be fast: four for each state.
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
