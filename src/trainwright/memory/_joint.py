"""Kernels of the priced joint programme: the table, and the plan with its copies that it means; see `joint`.

Row (x, t) holds D(s, t, x, m), m last, for a kind x of stage s - 1: `first_kind[s]` is its bare output,
`first_kind[s] + 1 + o` what its option o saves. Stages are counted from 0.
"""

import numpy as np

from trainwright.kernels import Floats, Ints, Singles, compiled
from trainwright.memory.sizes import Sizes

__all__ = ["BACKWARD", "DELETE", "FORWARD_ALL", "FORWARD_DROP", "FORWARD_KEEP", "LEAVE", "fill", "walk"]

FORWARD_ALL, FORWARD_KEEP, FORWARD_DROP, BACKWARD, DELETE, LEAVE = 0, 1, 2, 3, 4, 5
_EXPAND = -1
_INF = np.float32(np.inf)


@compiled
def _slots(count: int, unit: int, up: int) -> int:
    return max(0, count + up) // unit


@compiled
def fill(z: Sizes, kinds: tuple[Ints, Ints], grid: tuple[int, int, int], price: float) -> Singles:
    """Return the table; `kinds` are `first_kind` [n + 1] and the bytes of each kind, `grid` as in `_persistent`."""
    first_kind, weight = kinds
    unit, up, slots = grid
    n = z.plain.size
    arrived = z.delta + z.grown
    table = np.full((weight.size, n, slots + 1), _INF, np.float32)
    for s in range(n - 1, -1, -1):
        for t in range(s, n):
            for x in range(first_kind[s], first_kind[s + 1]):
                target, w = table[x, t], weight[x]
                wide, fare = _slots(w, unit, up), np.float32(price * w)
                for o in range(z.first[s], z.first[s + 1]):
                    need = w + max(
                        arrived[t + 1] + z.saved[o] + z.temporary[o],
                        z.delta[s + 1] + z.saved[o] + arrived[s] + z.back_temporary[o],
                    )
                    low, cost = _slots(need, unit, up), np.float32(z.forward[o] + z.back[o])
                    if s == t:
                        for m in range(low, slots + 1):
                            target[m] = min(target[m], cost)
                        continue
                    inner = table[first_kind[s + 1] + 1 + o - z.first[s], t]
                    for m in range(low, slots + 1):
                        value = inner[m] + fare
                        if m >= wide:
                            value = min(value, inner[m - wide])
                        target[m] = min(target[m], cost + value)
                need, ran = w + arrived[t + 1] + z.out[s + 1] + z.plain_temporary[s], 0.0
                rest = np.int64(0)
                for split in range(s + 1, t + 1):
                    j = split - 1
                    ran += z.plain[j]
                    if j > s:
                        rest = max(rest, arrived[t + 1] + z.out[j + 1] + z.plain_temporary[j] + z.out[j])
                    right, left, cost = table[first_kind[split], t], table[x, j], np.float32(ran)
                    for m in range(_slots(max(need, rest), unit, up), slots + 1):
                        value = right[m] + fare
                        if m >= wide and m >= _slots(w + rest, unit, up):
                            value = min(value, right[m - wide])
                        target[m] = min(target[m], cost + value + left[m])
    return table


@compiled
def walk(
    z: Sizes, kinds: tuple[Ints, Ints], table: Singles, grid: tuple[int, int, int], price: float
) -> tuple[Ints, Floats]:
    """Return the plan in all slots as rows (kind, stage from 1, option), and its parts of the value: work, fares.

    A row LEAVE says that a value (option -1: the bare output) waits on the host from here to its next reader.
    """
    first_kind, weight = kinds
    unit, up, slots = grid
    n = z.plain.size
    arrived = z.delta + z.grown
    done = np.empty((256, 3), np.int64)
    count = 0
    sums = np.zeros(2)
    tasks = np.empty((6 * n + 16, 5), np.int64)  # kind, s or stage, t or option, m, x
    tasks[0] = (_EXPAND, 0, n - 1, slots, 0)
    waiting = 1
    while waiting:
        waiting -= 1
        kind, s, t, m, x = tasks[waiting]
        if count + n + 4 > len(done):
            longer = np.empty((2 * len(done) + n + 4, 3), np.int64)
            longer[:count] = done[:count]
            done = longer
        if kind != _EXPAND:
            done[count] = (kind, s, t)
            count += 1
            continue
        if table[x, t, m] == _INF:
            return np.empty((0, 3), np.int64), sums
        w = weight[x]
        wide, fare = _slots(w, unit, up), np.float32(price * w)
        best, option, split_at, leaves = _INF, -1, -1, False
        for o in range(z.first[s], z.first[s + 1]):
            need = w + max(
                arrived[t + 1] + z.saved[o] + z.temporary[o],
                z.delta[s + 1] + z.saved[o] + arrived[s] + z.back_temporary[o],
            )
            if m < _slots(need, unit, up):
                continue
            value = np.float32(z.forward[o] + z.back[o])
            away = False
            if s < t:
                inner = table[first_kind[s + 1] + 1 + o - z.first[s], t]
                away = m < wide or inner[m] + fare < inner[m - wide]
                value += inner[m] + fare if away else inner[m - wide]
            if value < best:
                best, option, leaves = value, o, away
        need, ran, rest = w + arrived[t + 1] + z.out[s + 1] + z.plain_temporary[s], 0.0, np.int64(0)
        for split in range(s + 1, t + 1):
            j = split - 1
            ran += z.plain[j]
            if j > s:
                rest = max(rest, arrived[t + 1] + z.out[j + 1] + z.plain_temporary[j] + z.out[j])
            if m < _slots(max(need, rest), unit, up):
                continue
            right = table[first_kind[split], t]
            away = m < wide or m < _slots(w + rest, unit, up) or right[m] + fare < right[m - wide]
            value = np.float32(ran) + (right[m] + fare if away else right[m - wide]) + table[x, j, m]
            if value < best:
                best, option, split_at, leaves = value, -1, split, away
        inner_m = m if leaves else m - wide
        if leaves:
            sums[1] += price * w
        left_kind = x - first_kind[s] - 1
        if split_at < 0:
            sums[0] += z.forward[option] + z.back[option]
            done[count] = (FORWARD_ALL, s + 1, option - z.first[s])
            count += 1
            if leaves and s:
                done[count] = (LEAVE, s, left_kind)
                count += 1
            tasks[waiting] = (BACKWARD, s + 1, 0, 0, 0)
            waiting += 1
            if s < t:
                tasks[waiting] = (_EXPAND, s + 1, t, inner_m, first_kind[s + 1] + 1 + option - z.first[s])
                waiting += 1
            continue
        for j in range(s, split_at):
            sums[0] += z.plain[j]
            done[count] = (FORWARD_KEEP if j == s else FORWARD_DROP, j + 1, 0)
            count += 1
            if j == s and leaves and s:
                done[count] = (LEAVE, s, left_kind)
                count += 1
        tasks[waiting] = (_EXPAND, s, split_at - 1, m, x)
        tasks[waiting + 1] = (DELETE, split_at, 0, 0, 0)
        tasks[waiting + 2] = (_EXPAND, split_at, t, inner_m, first_kind[split_at])
        waiting += 3
    return done[:count], sums
