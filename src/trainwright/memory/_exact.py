"""Kernel of the exact search: A* over which values are alive and which gradient has arrived; see `exact`."""

import numpy as np

from trainwright.kernels import Floats, Ints, compiled
from trainwright.memory.sizes import Sizes

__all__ = ["BACKWARD", "DELETE", "FORWARD_ALL", "FORWARD_KEEP", "OFFLOAD", "PREFETCH", "RELEASE", "WAIT", "search",
           "search_with_copies"]  # fmt: skip

FORWARD_ALL, FORWARD_KEEP, BACKWARD, DELETE = 0, 1, 3, 4
_EMPTY = np.int64(-1)


@compiled
def _slot(keys: Ints, key: int) -> np.int64:
    """Return where a key stands, or would stand, in an open table whose size is a power of two."""
    mask = keys.size - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    place = np.int64(mixed >> np.uint64(20)) & mask
    while keys[place] not in (_EMPTY, key):
        place = (place + 1) & mask
    return place


@compiled
def _push(heap: Floats, nodes: Ints, size: int, value: float, node: int) -> int:
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
def _pop(heap: Floats, nodes: Ints, size: int) -> int:
    """Remove the least entry, which the caller has read."""
    size -= 1
    value, node = heap[size], nodes[size]
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
def search(z: Sizes, room: int, bound: float, base: int, limit: int) -> tuple[Ints, float, float]:
    """Return the operations (kind, stage from 1, option), their seconds (inf: none below `bound`), a lower bound.

    A state holds a digit for each stage (0 nothing, 1 the bare output, 2 + o saved by option o) and the gradient's
    stage. `limit` is the number of states, beyond which the search ends with the lower bound that it has reached.
    """
    out, delta, plain_temporary, plain, cheapest, first = (
        z.out,
        z.delta,
        z.plain_temporary,
        z.plain,
        z.cheapest,
        z.first,
    )
    forward, back, saved, temporary, back_temporary = z.forward, z.back, z.saved, z.temporary, z.back_temporary
    grown = z.grown
    n = plain.size
    powers = np.ones(n + 2, np.int64)
    for i in range(1, n + 2):
        powers[i] = powers[i - 1] * base
    capacity = 1024
    table, holder = np.full(4 * capacity, _EMPTY), np.zeros(4 * capacity, np.int64)
    states, cost, closed = np.zeros(capacity, np.int64), np.zeros(capacity), np.zeros(capacity, np.bool_)
    came = np.zeros((capacity, 4), np.int64)  # parent, kind, stage, option
    heap, nodes, size = np.zeros(capacity), np.zeros(capacity, np.int64), 0
    top = powers[n]  # state = digits + top * gradient; the digit of stage i has weight powers[i - 1]
    states[0] = top * n
    count = 1
    place = _slot(table, states[0])
    table[place], holder[place] = states[0], 0
    size = _push(heap, nodes, size, cheapest.sum(), 0)
    digit = np.zeros(n + 1, np.int64)
    proven = 0.0
    while size:
        proven, node = heap[0], nodes[0]
        size = _pop(heap, nodes, size)
        if closed[node]:
            continue
        closed[node] = True
        gradient = states[node] // top
        if gradient == 0:
            length, at = 0, node
            while at:
                length, at = length + 1, came[at, 0]
            path, at = np.empty((length, 3), np.int64), node
            while at:
                length -= 1
                path[length] = came[at, 1:]
                at = came[at, 0]
            return path, cost[node], cost[node]
        if proven >= bound or count > limit:
            break
        code, used, rest = states[node] - top * gradient, delta[gradient] + grown[gradient], 0.0
        for i in range(1, n + 1):
            digit[i] = (code // powers[i - 1]) % base
            if digit[i] == 1:
                used += out[i]
            elif digit[i] > 1:
                used += saved[first[i - 1] + digit[i] - 2]
            if i <= gradient:
                rest += min(back[first[i - 1] + digit[i] - 2], cheapest[i - 1]) if digit[i] > 1 else cheapest[i - 1]
        if size + 4 * n * base + 8 > heap.size:
            heap = np.concatenate((heap, np.zeros(heap.size + 4 * n * base)))
            nodes = np.concatenate((nodes, np.zeros(nodes.size + 4 * n * base, np.int64)))
        if count + 4 * n * base + 8 > states.size:
            more = states.size + 4 * n * base
            states = np.concatenate((states, np.zeros(more, np.int64)))
            cost = np.concatenate((cost, np.zeros(more)))
            closed = np.concatenate((closed, np.zeros(more, np.bool_)))
            came = np.concatenate((came, np.zeros((more, 4), np.int64)))
        if 2 * (count + 4 * n * base) > table.size:
            table, holder = np.full(4 * table.size, _EMPTY), np.zeros(4 * table.size, np.int64)
            for each in range(count):
                place = _slot(table, states[each])
                table[place], holder[place] = states[each], each
        # The backward that can run now: where it frees as much as it takes, nothing is gained by waiting.
        alone = False
        if digit[gradient] > 1 and (gradient == 1 or digit[gradient - 1]):
            o = first[gradient - 1] + digit[gradient] - 2
            made = delta[gradient - 1] + grown[gradient - 1] - grown[gradient]
            if used + made + back_temporary[o] <= room:
                alone = made <= saved[o] + delta[gradient] and back[o] <= cheapest[gradient - 1]
        for kind in (BACKWARD, FORWARD_ALL, FORWARD_KEEP, DELETE):
            if alone and kind != BACKWARD:
                break
            for i in range(gradient if kind == BACKWARD else 1, gradient + 1):
                ready = i == 1 or digit[i - 1] > 0
                options = first[i] - first[i - 1] if kind == FORWARD_ALL else 1
                for option in range(options):
                    state, spent, left = states[node], 0.0, rest
                    o = first[i - 1] + option
                    if kind == BACKWARD:
                        o = first[i - 1] + digit[i] - 2
                        made = delta[i - 1] + grown[i - 1] - grown[i]
                        if digit[i] < 2 or not ready or used + made + back_temporary[o] > room:
                            continue
                        state -= digit[i] * powers[i - 1] + top
                        if i > 1 and digit[i - 1] == 1:  # nobody reads it any more
                            state -= powers[i - 2]
                        spent, left = back[o], rest - min(back[o], cheapest[i - 1])
                    elif kind == FORWARD_ALL:
                        bare = out[i] if digit[i] == 1 else 0  # dropped first
                        if digit[i] > 1 or not ready or used - bare + saved[o] + temporary[o] > room:
                            continue
                        state += (2 + option - digit[i]) * powers[i - 1]
                        spent, left = forward[o], rest - cheapest[i - 1] + min(back[o], cheapest[i - 1])
                    elif kind == FORWARD_KEEP:
                        if i == gradient or digit[i] or not ready or used + out[i] + plain_temporary[i - 1] > room:
                            continue
                        state += powers[i - 1]
                        spent = plain[i - 1]
                    else:
                        if not digit[i]:
                            continue
                        state -= digit[i] * powers[i - 1]
                        if digit[i] > 1:
                            o = first[i - 1] + digit[i] - 2
                            left = rest + cheapest[i - 1] - min(back[o], cheapest[i - 1])
                    reached = cost[node] + spent
                    if reached + left >= bound:
                        continue
                    place = _slot(table, state)
                    known = table[place] != _EMPTY
                    other = holder[place] if known else count
                    if known and (closed[other] or cost[other] <= reached):
                        continue
                    if not known:
                        table[place], holder[place], states[other] = state, count, state
                        count += 1
                    cost[other] = reached
                    came[other] = (node, kind, i, option)
                    size = _push(heap, nodes, size, reached + left, other)
    return np.empty((0, 3), np.int64), np.inf, min(proven, bound) if size else bound


# With copies to the host. A state packs, four bits for each stage, where its bare output and its saved values are
# (0 nowhere, 1 on the device, 2 on the host, 3 on both), then the gradient, the operation under way and the copies.
_NOWHERE, _HERE, _AWAY, _BOTH = 0, 1, 2, 3
_GRADIENT, _KIND, _STAGE, _LEFT, _OUT, _OUT_LEFT, _IN, _IN_LEFT = 28, 31, 33, 36, 42, 46, 51, 55
OFFLOAD, PREFETCH, RELEASE, WAIT = 5, 6, 7, 8


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
    z: Sizes, ticks: tuple[Ints, Ints, Ints], room: int, bound: int, limit: int
) -> tuple[Ints, float, float]:
    """Return the actions of the fastest schedule with copies, its ticks (inf: none below `bound`), a lower bound.

    A byte takes one tick each way; `ticks` are those of plain forwards, forwards and backwards [n], n at most 7. Rows
    are (action, stage or key, whether an operation is under way); RELEASE frees what is on the host too, WAIT lets
    time pass until something ends.
    """
    plain, forward, back = ticks
    n = plain.size
    size = np.zeros(2 * n + 2, np.int64)  # by key
    size[2::2], size[3::2] = z.out[1:], z.saved
    capacity = 1 << 14
    table, holder = np.full(4 * capacity, _EMPTY), np.zeros(4 * capacity, np.int64)
    states, cost, closed = np.zeros(capacity, np.int64), np.zeros(capacity), np.zeros(capacity, np.bool_)
    came = np.zeros((capacity, 4), np.int64)  # parent, action, stage or key, under way
    heap, nodes, waiting = np.zeros(capacity), np.zeros(capacity, np.int64), 0
    states[0] = n << _GRADIENT
    holder[_slot(table, states[0])], count = 0, 1
    table[_slot(table, states[0])] = states[0]
    waiting = _push(heap, nodes, waiting, float((forward + back).sum()), 0)
    follow = np.empty((8 * n + 16, 4), np.int64)  # state, ticks, action, stage or key
    proven = 0.0
    while waiting:
        proven, node = heap[0], nodes[0]
        waiting = _pop(heap, nodes, waiting)
        if closed[node]:
            continue
        closed[node] = True
        state = states[node]
        gradient, stage, kind = _field(state, _GRADIENT, 3), _field(state, _STAGE, 3), _field(state, _KIND, 2)
        if gradient == 0:
            length, at = 0, node
            while at:
                length, at = length + 1, came[at, 0]
            path, at = np.empty((length, 3), np.int64), node
            while at:
                length -= 1
                path[length] = came[at, 1:]
                at = came[at, 0]
            return path, cost[node], cost[node]
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
            table, holder = np.full(4 * table.size, _EMPTY), np.zeros(4 * table.size, np.int64)
            for each in range(count):
                at = _slot(table, states[each])
                table[at], holder[at] = states[each], each
        out, into = _field(state, _OUT, 4), _field(state, _IN, 4)
        used = z.delta[gradient] + z.grown[gradient] + (size[into] if into else 0)
        for key in range(2, 2 * gradient + 2):
            if _here(state, key):
                used += size[key]
        if stage and kind == BACKWARD:
            used += z.delta[stage - 1] + z.grown[stage - 1] - z.grown[stage] + z.back_temporary[stage - 1]
        elif stage:
            used += size[2 * stage + (kind == FORWARD_ALL)]
            used += z.temporary[stage - 1] if kind == FORWARD_ALL else z.plain_temporary[stage - 1]
        many = 0
        if not stage:
            for i in range(1, gradient + 1):
                if not _ready(state, i - 1):
                    continue
                saved, bare = 2 * i + 1, 2 * i
                if i == gradient and _here(state, saved):
                    made = z.delta[i - 1] + z.grown[i - 1] - z.grown[i] + z.back_temporary[i - 1]
                    if used + made <= room:
                        after = state | (BACKWARD << _KIND) | (i << _STAGE) | (back[i - 1] << _LEFT)
                        follow[many] = (after, 0, BACKWARD, i)
                        many += 1
                if not _here(state, saved) and into != saved and used + size[saved] + z.temporary[i - 1] <= room:
                    after = state | (FORWARD_ALL << _KIND) | (i << _STAGE) | (forward[i - 1] << _LEFT)
                    follow[many] = (after, 0, FORWARD_ALL, i)
                    many += 1
                fits = used + size[bare] + z.plain_temporary[i - 1] <= room
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
            at = _slot(table, after)
            known = table[at] != _EMPTY
            other = holder[at] if known else count
            if known and (closed[other] or cost[other] <= reached):
                continue
            if not known:
                table[at], holder[at], states[other] = after, count, after
                count += 1
            cost[other] = reached
            came[other, 0], came[other, 1], came[other, 2], came[other, 3] = node, action, what, stage
            waiting = _push(heap, nodes, waiting, reached + rest, other)
    return np.empty((0, 3), np.int64), np.inf, min(proven, float(bound)) if waiting else float(bound)
