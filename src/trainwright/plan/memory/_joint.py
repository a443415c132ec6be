"""Kernels of the priced joint program: its table, and the plan read off the table.

Row (x, t) of the table holds D(s, t, x, m), m last, for a kind x of stage s - 1: `first_kind[s]` is its bare output,
`first_kind[s] + 1 + o` what its option o saves. Stages are counted from 0; see `offload` for the problem.
"""

import numpy as np

from trainwright.kernels import Floats, Ints, Singles, compiled
from trainwright.plan.memory.operations import BACKWARD, DELETE, FORWARD_ALL, FORWARD_DROP, FORWARD_KEEP, OFFLOAD
from trainwright.plan.memory.sizes import Sizes

__all__ = ["PricedTable", "fill_priced_table", "walk_priced_table"]

PricedTable = tuple[tuple[Ints, Ints], Singles, tuple[int, int, int], float]
"""Kinds, table, grid and price, as of `fill_priced_table`."""
_INF = np.float32(np.inf)
_EXPAND = -1
"""A task of the walk: a node of the plan that is still to be expanded."""


@compiled
def _to_slots(count: int, unit: int, up: int) -> int:
    return max(0, count + up) // unit


@compiled
def fill_priced_table(sizes: Sizes, kinds: tuple[Ints, Ints], grid: tuple[int, int, int], price: float) -> Singles:
    """Return the table; `kinds` are `first_kind` [n + 1] and the bytes of each kind, `grid` as in `_persistent`."""
    first_kind, weight = kinds
    unit, up, slots = grid
    n = sizes.no_grad_forward.size
    gradient_bytes = sizes.output_gradient + sizes.later_gradients
    table = np.full((weight.size, n, slots + 1), _INF, np.float32)
    for s in range(n - 1, -1, -1):
        for t in range(s, n):
            for x in range(first_kind[s], first_kind[s + 1]):
                # What stage s - 1 holds while the stages behind run takes `wide` slots, or `fare` to send it away.
                # The row is filled for all m at once, so that the inner loops run over contiguous memory.
                target, w = table[x, t], weight[x]
                wide, fare = _to_slots(w, unit, up), np.float32(price * w)
                # Save stage s with option o. In its forward the gradient of s..t already waits; in its backward the
                # gradients of its output and of its input are alive together.
                for o in range(sizes.first[s], sizes.first[s + 1]):
                    need = w + max(
                        gradient_bytes[t + 1] + sizes.saved[o] + sizes.temporary[o],
                        sizes.output_gradient[s + 1] + sizes.saved[o] + gradient_bytes[s] + sizes.backward_temporary[o],
                    )
                    low, cost = _to_slots(need, unit, up), np.float32(sizes.forward[o] + sizes.backward[o])
                    if s == t:
                        for m in range(low, slots + 1):
                            target[m] = min(target[m], cost)
                        continue
                    # Meanwhile w leaves for its price, or stays and takes its slots.
                    inner = table[first_kind[s + 1] + 1 + o - sizes.first[s], t]
                    for m in range(low, slots + 1):
                        value = inner[m] + fare
                        if m >= wide:
                            value = min(value, inner[m - wide])
                        target[m] = min(target[m], cost + value)
                # Or run s..split-1 without gradients, then split..t, then s..split-1 again. The first of these forwards
                # reads w; while the others run (`rest`), w may have left.
                need, ran = w + gradient_bytes[t + 1] + sizes.output[s + 1] + sizes.no_grad_temporary[s], 0.0
                rest = np.int64(0)
                for split in range(s + 1, t + 1):
                    j = split - 1
                    ran += sizes.no_grad_forward[j]
                    if j > s:
                        rest = max(
                            rest,
                            gradient_bytes[t + 1] + sizes.output[j + 1] + sizes.no_grad_temporary[j] + sizes.output[j],
                        )
                    right, left, cost = table[first_kind[split], t], table[x, j], np.float32(ran)
                    for m in range(_to_slots(max(need, rest), unit, up), slots + 1):
                        value = right[m] + fare
                        # A value that stays stands beside the forwards behind the first, too.
                        if m >= wide and m >= _to_slots(w + rest, unit, up):
                            value = min(value, right[m - wide])
                        target[m] = min(target[m], cost + value + left[m])
    return table


@compiled
def _grow_rows(rows: Ints, count: int, more: int) -> Ints:
    if count + more <= len(rows):
        return rows
    # Doubling keeps the copies to a constant share of the rows.
    longer = np.empty((2 * len(rows) + more, rows.shape[1]), np.int64)
    longer[:count] = rows[:count]
    return longer


@compiled
def _best_choice(sizes: Sizes, priced: PricedTable, node: tuple[int, int, int, int]) -> tuple[int, int, bool]:
    """Return the option and the split (each -1 if not chosen) of a node (s, t, m, x), and whether what is held leaves.

    The choices are compared again as in `fill_priced_table`, for nothing was stored when the table was filled.
    """
    (first_kind, weight), table, (unit, up, _), price = priced
    s, t, m, x = node
    gradient_bytes = sizes.output_gradient + sizes.later_gradients
    w = weight[x]
    wide, fare = _to_slots(w, unit, up), np.float32(price * w)
    # First the options of stage s.
    best, option, split_at, leaves = _INF, -1, -1, False
    for o in range(sizes.first[s], sizes.first[s + 1]):
        need = w + max(
            gradient_bytes[t + 1] + sizes.saved[o] + sizes.temporary[o],
            sizes.output_gradient[s + 1] + sizes.saved[o] + gradient_bytes[s] + sizes.backward_temporary[o],
        )
        if m < _to_slots(need, unit, up):
            continue
        value, away = np.float32(sizes.forward[o] + sizes.backward[o]), False
        if s < t:
            inner = table[first_kind[s + 1] + 1 + o - sizes.first[s], t]
            away = m < wide or inner[m] + fare < inner[m - wide]
            value += inner[m] + fare if away else inner[m - wide]
        if value < best or option < 0:
            best, option, leaves = value, o, away
    # Then the splits.
    need, ran, rest = w + gradient_bytes[t + 1] + sizes.output[s + 1] + sizes.no_grad_temporary[s], 0.0, np.int64(0)
    for split in range(s + 1, t + 1):
        j = split - 1
        ran += sizes.no_grad_forward[j]
        if j > s:
            rest = max(rest, gradient_bytes[t + 1] + sizes.output[j + 1] + sizes.no_grad_temporary[j] + sizes.output[j])
        if m < _to_slots(max(need, rest), unit, up):
            continue
        right = table[first_kind[split], t]
        away = m < wide or m < _to_slots(w + rest, unit, up) or right[m] + fare < right[m - wide]
        value = np.float32(ran) + (right[m] + fare if away else right[m - wide]) + table[x, j, m]
        if value < best or (option < 0 and split_at < 0):
            best, option, split_at, leaves = value, -1, split, away
    return option, split_at, leaves


@compiled
def walk_priced_table(sizes: Sizes, priced: PricedTable) -> tuple[Ints, Floats]:
    """Return the plan in all slots as rows, its seconds and the bytes that leave; no rows if there is none.

    A row OFFLOAD says that a value waits on the host from here to its next reader.
    """
    (first_kind, weight), table, (unit, up, slots), _ = priced
    n = sizes.no_grad_forward.size
    done: Ints = np.empty((256, 3), np.int64)
    count, sums = 0, np.zeros(2)
    if table[0, n - 1, slots] == _INF:
        return done[:0], sums
    # A stack instead of recursion; tasks that are rows already stand below the nodes that come before them.
    tasks = np.empty((6 * n + 16, 5), np.int64)  # kind, s or stage, t or option, m, x
    tasks[0] = (_EXPAND, 0, n - 1, slots, 0)
    waiting = 1
    while waiting:
        waiting -= 1
        kind, s, t, m, x = tasks[waiting]
        done = _grow_rows(done, count, n + 4)
        if kind != _EXPAND:
            done[count] = (kind, s, t)
            count += 1
            continue
        option, split_at, leaves = _best_choice(sizes, priced, (s, t, m, x))
        # -1 if stage s - 1 has left a bare output, else the option that has saved it.
        left_kind = x - first_kind[s] - 1
        inner_m = m if leaves else m - _to_slots(weight[x], unit, up)
        if leaves:
            sums[1] += weight[x]
        if split_at < 0:
            # Stage s is saved: its forward, all behind it, its backward.
            sums[0] += sizes.forward[option] + sizes.backward[option]
            done[count] = (FORWARD_ALL, s + 1, option - sizes.first[s])
            count += 1
            if leaves and s and s < t:
                done[count] = (OFFLOAD, s, left_kind)
                count += 1
            tasks[waiting] = (BACKWARD, s + 1, 0, 0, 0)
            waiting += 1
            if s < t:
                tasks[waiting] = (_EXPAND, s + 1, t, inner_m, first_kind[s + 1] + 1 + option - sizes.first[s])
                waiting += 1
            continue
        # Forwards up to the split, all behind it, the bare output that it began with goes, and s..split-1 once more.
        for j in range(s, split_at):
            sums[0] += sizes.no_grad_forward[j]
            done[count] = (FORWARD_KEEP if j == s else FORWARD_DROP, j + 1, 0)
            count += 1
            if j == s and leaves and s:
                done[count] = (OFFLOAD, s, left_kind)
                count += 1
        tasks[waiting] = (_EXPAND, s, split_at - 1, m, x)
        tasks[waiting + 1] = (DELETE, split_at, -1, 0, 0)
        tasks[waiting + 2] = (_EXPAND, split_at, t, inner_m, first_kind[split_at])
        waiting += 3
    return done[:count], sums
