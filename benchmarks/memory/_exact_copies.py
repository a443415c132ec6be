"""Kernel of the exact search with copies to the host; see `exact`.

A state packs, four bits for each stage, where its bare output and its saved values are (0 nowhere, 1 on the device,
2 on the host, 3 on both), then the gradient, the operation under way and the copies.
"""

import numpy as np

from trainwright.kernels import Floats, Ints, compiled
from trainwright.plan.memory.sizes import Sizes

__all__ = ["OFFLOAD", "PREFETCH", "RELEASE", "WAIT", "search_with_copies"]

FORWARD_ALL, FORWARD_KEEP, BACKWARD, DELETE = 0, 1, 3, 4
_NOWHERE, _HERE, _AWAY, _BOTH = 0, 1, 2, 3
_GRADIENT, _KIND, _STAGE, _LEFT, _OUT, _OUT_LEFT, _IN, _IN_LEFT = 28, 31, 33, 36, 42, 46, 51, 55
OFFLOAD, PREFETCH, RELEASE, WAIT = 5, 6, 7, 8
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
def _field(state: int, place: int, bits: int) -> int:
    return (state >> place) & ((1 << bits) - 1)


@compiled
def _where(state: int, key: int) -> int:
    """Return where a value is; key 2 stage is the bare output, 2 stage + 1 what is saved."""
    return (state >> (2 * key - 4)) & 3


@compiled
def _moved(state: int, key: int, where: int) -> int:
    place = 2 * key - 4
    return (state & ~(3 << place)) | (where << place)


@compiled
def _here(state: int, key: int) -> bool:
    return (_where(state, key) & 1) == 1


@compiled
def _ready(state: int, stage: int) -> bool:
    """Whether what a stage hands on is on the device."""
    return stage == 0 or _here(state, 2 * stage) or _here(state, 2 * stage + 1)


@compiled
def _ended(state: int) -> int:
    """Return the state after what is under way and has no time left, -1 if a copy has become pointless."""
    if _field(state, _STAGE, 3) and not _field(state, _LEFT, 6):
        kind, stage = _field(state, _KIND, 2), _field(state, _STAGE, 3)
        state &= ~(((1 << 11) - 1) << _KIND)
        if kind == BACKWARD:
            gone = (2 * stage + 1, 2 * stage, 2 * stage - 2 if stage > 1 else 2 * stage)
            for key in gone:
                if key in (_field(state, _OUT, 4), _field(state, _IN, 4)):
                    return -1
                state = _moved(state, key, _NOWHERE)
            state -= 1 << _GRADIENT
        else:
            key = 2 * stage + (kind == FORWARD_ALL)
            state = _moved(state, key, _where(state, key) | _HERE)
    if _field(state, _OUT, 4) and not _field(state, _OUT_LEFT, 5):
        key = _field(state, _OUT, 4)
        state = _moved(state & ~(((1 << 9) - 1) << _OUT), key, _BOTH)
    if _field(state, _IN, 4) and not _field(state, _IN_LEFT, 5):
        key = _field(state, _IN, 4)
        state = _moved(state & ~(((1 << 9) - 1) << _IN), key, _HERE)
    return state


@compiled
def search_with_copies(
    sizes: Sizes, ticks: tuple[Ints, Ints, Ints], room: int, bound: int, limit: int
) -> tuple[Ints, float, float]:
    """Return the actions of the fastest schedule with copies, its ticks (inf: none below `bound`), a lower bound.

    A byte takes one tick each way; `ticks` are those of plain forwards, forwards and backwards [n], n at most 7. Rows
    are (action, stage or key, whether an operation is under way); RELEASE frees what is on the host too, WAIT lets
    time pass until something ends.
    """
    plain, forward, back = ticks
    n = plain.size
    size = np.zeros(2 * n + 2, np.int64)  # by key
    size[2::2], size[3::2] = sizes.output[1:], sizes.saved
    capacity = 1 << 14
    states, cost, closed = np.zeros(capacity, np.int64), np.zeros(capacity), np.zeros(capacity, np.bool_)
    came = np.zeros((capacity, 4), np.int64)  # parent, action, stage or key, under way
    heap, nodes, waiting = np.zeros(capacity), np.zeros(capacity, np.int64), 0
    states[0] = n << _GRADIENT
    count = 1
    table, holder = build_table(states, count, 4 * capacity)
    waiting = push_heap(heap, nodes, waiting, float((forward + back).sum()), 0)
    follow = np.empty((8 * n + 16, 4), np.int64)  # state, ticks, action, stage or key
    proven = 0.0
    while waiting:
        proven, node = heap[0], nodes[0]
        waiting = pop_heap(heap, nodes, waiting)
        if closed[node]:
            continue
        closed[node] = True
        state = states[node]
        gradient, stage, kind = _field(state, _GRADIENT, 3), _field(state, _STAGE, 3), _field(state, _KIND, 2)
        if gradient == 0:
            return path_to(came, node), cost[node], cost[node]
        if proven >= bound or count > limit:
            break
        if waiting + len(follow) > heap.size:
            heap = np.concatenate((heap, np.zeros(heap.size)))
            nodes = np.concatenate((nodes, np.zeros(nodes.size, np.int64)))
        if count + len(follow) > states.size:
            states = np.concatenate((states, np.zeros(states.size, np.int64)))
            cost = np.concatenate((cost, np.zeros(cost.size)))
            closed = np.concatenate((closed, np.zeros(closed.size, np.bool_)))
            came = np.concatenate((came, np.zeros(came.shape, np.int64)))
        if 2 * (count + len(follow)) > table.size:
            table, holder = build_table(states, count, 4 * table.size)
        out, into = _field(state, _OUT, 4), _field(state, _IN, 4)
        used = sizes.output_gradient[gradient] + sizes.later_gradients[gradient] + (size[into] if into else 0)
        for key in range(2, 2 * gradient + 2):
            if _here(state, key):
                used += size[key]
        if stage and kind == BACKWARD:
            used += (
                sizes.output_gradient[stage - 1]
                + sizes.later_gradients[stage - 1]
                - sizes.later_gradients[stage]
                + sizes.backward_temporary[stage - 1]
            )
        elif stage:
            used += size[2 * stage + (kind == FORWARD_ALL)]
            used += sizes.temporary[stage - 1] if kind == FORWARD_ALL else sizes.no_grad_temporary[stage - 1]
        many = 0
        if not stage:
            for i in range(1, gradient + 1):
                if not _ready(state, i - 1):
                    continue
                saved, bare = 2 * i + 1, 2 * i
                if i == gradient and _here(state, saved):
                    made = (
                        sizes.output_gradient[i - 1]
                        + sizes.later_gradients[i - 1]
                        - sizes.later_gradients[i]
                        + sizes.backward_temporary[i - 1]
                    )
                    if used + made <= room:
                        after = state | (BACKWARD << _KIND) | (i << _STAGE) | (back[i - 1] << _LEFT)
                        follow[many] = (after, 0, BACKWARD, i)
                        many += 1
                if not _here(state, saved) and into != saved and used + size[saved] + sizes.temporary[i - 1] <= room:
                    after = state | (FORWARD_ALL << _KIND) | (i << _STAGE) | (forward[i - 1] << _LEFT)
                    follow[many] = (after, 0, FORWARD_ALL, i)
                    many += 1
                fits = used + size[bare] + sizes.no_grad_temporary[i - 1] <= room
                if i < gradient and not _here(state, bare) and into != bare and fits:
                    after = state | (FORWARD_KEEP << _KIND) | (i << _STAGE) | (plain[i - 1] << _LEFT)
                    follow[many] = (after, 0, FORWARD_KEEP, i)
                    many += 1
        for key in range(2, 2 * gradient + 2):
            where = _where(state, key)
            makes = stage > 0 and kind != BACKWARD and key == 2 * stage + (kind == FORWARD_ALL)
            if where & 1 and key != out:
                less = _moved(state, key, where - 1)
                reads = stage > 0 and kind == BACKWARD and key == 2 * stage + 1
                if not reads and (not stage or _ready(less, stage - 1)):
                    follow[many] = (less, 0, RELEASE if where == _BOTH else DELETE, key)
                    many += 1
            if where == _HERE and not out and size[key]:
                follow[many] = (state | (key << _OUT) | (size[key] << _OUT_LEFT), 0, OFFLOAD, key)
                many += 1
            if where == _AWAY and not into and not makes and used + size[key] <= room:
                follow[many] = (state | (key << _IN) | (size[key] << _IN_LEFT), 0, PREFETCH, key)
                many += 1
        step = 1 << 20
        if stage:
            step = min(step, _field(state, _LEFT, 6))
        if out:
            step = min(step, _field(state, _OUT_LEFT, 5))
        if into:
            step = min(step, _field(state, _IN_LEFT, 5))
        if step < 1 << 20:
            after = state
            if stage:
                after -= step << _LEFT
            if out:
                after -= step << _OUT_LEFT
            if into:
                after -= step << _IN_LEFT
            follow[many] = (_ended(after), step, WAIT, 0)
            many += 1
        for each in range(many):
            after, spent, action, what = follow[each]
            if after < 0:
                continue
            rest, running = 0, _field(after, _STAGE, 3)
            kind_now, left = _field(after, _KIND, 2), _field(after, _LEFT, 6)
            for i in range(1, _field(after, _GRADIENT, 3) + 1):
                rest += left if running == i and kind_now == BACKWARD else back[i - 1]
                if _where(after, 2 * i + 1) == _NOWHERE:
                    rest += left if running == i and kind_now == FORWARD_ALL else forward[i - 1]
            if running and kind_now == FORWARD_KEEP:
                rest += left
            reached = cost[node] + spent
            if reached + rest >= bound:
                continue
            at = find_slot(table, after)
            known = table[at] != EMPTY
            other = holder[at] if known else count
            if known and (closed[other] or cost[other] <= reached):
                continue
            if not known:
                table[at], holder[at], states[other] = after, count, after
                count += 1
            cost[other] = reached
            came[other, 0], came[other, 1], came[other, 2], came[other, 3] = node, action, what, stage
            waiting = push_heap(heap, nodes, waiting, reached + rest, other)
    return np.empty((0, 3), np.int64), np.inf, min(proven, float(bound)) if waiting else float(bound)
