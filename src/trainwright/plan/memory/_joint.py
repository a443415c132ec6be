"""Kernels of the priced joint program: its table, the plan read off the table, and annealing of that plan's decisions.

Row (x, t) of the table holds D(s, t, x, m), m last, for a kind x of stage s - 1: `first_kind[s]` is its bare output,
`first_kind[s] + 1 + o` what its option o saves. Stages are counted from 0; see `joint` for the problem.
"""

import numpy as np

from trainwright.kernels import Floats, Ints, Singles, compiled
from trainwright.plan.memory.copy_schedule import (
    BACKWARD,
    DELETE,
    FORWARD_ALL,
    FORWARD_DROP,
    FORWARD_KEEP,
    OFFLOAD,
    Limits,
    fastest_schedule,
)
from trainwright.plan.memory.sizes import Sizes

__all__ = ["PricedTable", "anneal_choices", "fill_priced_table", "no_forced_choices", "walk_priced_table"]

PricedTable = tuple[tuple[Ints, Ints], Singles, tuple[int, int, int], float]
"""Kinds, table, grid and price, as of `fill_priced_table`."""
_INF = np.float32(np.inf)
_EXPAND = -1
"""A task of the walk: a node of the plan that is still to be expanded."""
_FREE = -1
"""A decision that is not forced."""
_SPLIT = 1000
"""Forced choices: an option of the stage, or this and the split."""
_HEAT = 1e-3


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
                        if m >= wide and m >= _to_slots(w + rest, unit, up):
                            value = min(value, right[m - wide])
                        target[m] = min(target[m], cost + value + left[m])
    return table


def no_forced_choices(n: int) -> Ints:
    """Return the decisions of a plan of n stages, none of them forced, as `walk_priced_table` reads them."""
    forced = np.full((n, n, 3), _FREE, np.int64)
    forced[:, :, 2] = 0
    return forced


@compiled
def _grow_rows(rows: Ints, count: int, more: int) -> Ints:
    if count + more <= len(rows):
        return rows
    longer = np.empty((2 * len(rows) + more, rows.shape[1]), np.int64)
    longer[:count] = rows[:count]
    return longer


@compiled
def walk_priced_table(sizes: Sizes, priced: PricedTable, forced: Ints) -> tuple[Ints, Floats, Ints]:
    """Return the plan in all slots as rows, its seconds and the bytes that leave, and the nodes (s, t) it has.

    A row OFFLOAD says that a value waits on the host from here to its next reader. `forced` [n, n, 3] has of node
    (s, t) its choice, whether what is held leaves (1) or stays (0), each _FREE or forced, and slots given to it.
    """
    (first_kind, weight), table, (unit, up, slots), price = priced
    n = sizes.no_grad_forward.size
    gradient_bytes = sizes.output_gradient + sizes.later_gradients
    done: Ints = np.empty((256, 3), np.int64)
    nodes: Ints = np.empty((4 * n + 4, 2), np.int64)
    count = seen = 0
    sums = np.zeros(2)
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
        # A node (s, t): compare its choices again, for nothing was stored when the table was filled.
        nodes = _grow_rows(nodes, seen, 1)
        nodes[seen] = (s, t)
        seen += 1
        m = min(max(m + forced[s, t, 2], 0), slots)
        while table[x, t, m] == _INF:  # never without forced decisions but at the root
            m += 1
            if m > slots:
                return done[:0], sums, nodes[:seen]
        w = weight[x]
        wide, fare = _to_slots(w, unit, up), np.float32(price * w)
        # First the options of stage s, as in `fill_priced_table`; a forced choice need not fit the table's rounding.
        best, option, split_at, leaves = _INF, -1, -1, False
        choice, must = forced[s, t, 0], forced[s, t, 1]
        for o in range(sizes.first[s], sizes.first[s + 1]):
            if choice != _FREE and choice != o - sizes.first[s]:
                continue
            need = w + max(
                gradient_bytes[t + 1] + sizes.saved[o] + sizes.temporary[o],
                sizes.output_gradient[s + 1] + sizes.saved[o] + gradient_bytes[s] + sizes.backward_temporary[o],
            )
            if m < _to_slots(need, unit, up) and choice == _FREE:
                continue
            value = np.float32(sizes.forward[o] + sizes.backward[o])
            away = False
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
                rest = max(
                    rest, gradient_bytes[t + 1] + sizes.output[j + 1] + sizes.no_grad_temporary[j] + sizes.output[j]
                )
            if choice != _FREE and choice != _SPLIT + split:
                continue
            if m < _to_slots(max(need, rest), unit, up) and choice == _FREE:
                continue
            right = table[first_kind[split], t]
            away = m < wide or m < _to_slots(w + rest, unit, up) or right[m] + fare < right[m - wide]
            value = np.float32(ran) + (right[m] + fare if away else right[m - wide]) + table[x, j, m]
            if value < best or (option < 0 and split_at < 0):
                best, option, split_at, leaves = value, -1, split, away
        if must != _FREE:
            leaves = must == 1
        inner_m = m if leaves else m - wide
        if leaves:
            sums[1] += w
        left_kind = x - first_kind[s] - 1
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
    return done[:count], sums, nodes[:seen]


@compiled
def anneal_choices(
    sizes: Sizes, priced: PricedTable, within: tuple[Limits, Floats], forced: Ints, draws: Floats
) -> tuple[Ints, float]:
    """Return the fastest list found, and its seconds, by forcing more decisions of the plan that a table means.

    One try for each row of `draws`, 14 numbers in [0, 1). Annealing: a change that loses a share x of the time is kept
    with probability exp(-x / heat), heat falling to zero. In the end `forced` has the decisions of the fastest.
    """
    (limits, hurries), slots, tries = within, priced[2][2], len(draws)
    rows, sums, nodes = walk_priced_table(sizes, priced, forced)
    best, least = fastest_schedule(sizes, limits, hurries, rows)
    if not len(rows):
        return best, least
    spent, kept = least, forced.copy()
    undo = np.empty((3, 4), np.int64)
    for turn in range(tries):
        draw = draws[turn]
        # Force one to three decisions of nodes that the plan has: what is chosen (0), what leaves (1), or slots (2).
        changes = 1 if draw[0] < 0.5 else (2 if draw[0] < 0.9 else 3)
        for each in range(changes):
            where, which, value, more = draw[2 + 4 * each : 6 + 4 * each]
            s, t = nodes[int(where * len(nodes))]
            what = 1 if which < 0.4 else (0 if which < 0.8 else 2)
            undo[each] = (s, t, what, forced[s, t, what])
            if what == 1:
                new = int(3 * value) - 1
            elif what == 2:
                new = 0 if value < 0.2 else int((2 * more - 1) * slots / 6)
            elif value < 0.2:
                new = _FREE
            elif t == s or value < 0.6:
                new = int(more * (sizes.first[s + 1] - sizes.first[s]))
            else:
                new = _SPLIT + s + 1 + int(more * (t - s))
            forced[s, t, what] = new
        rows, sums, other = walk_priced_table(sizes, priced, forced)
        # The plan's own seconds are a bound of its time with copies, so that many tries need no simulation.
        limit = spent * (1 - _HEAT * (1 - turn / tries) * np.log(1 - draw[1])) if spent < np.inf else np.inf
        found, time = rows[:0], np.inf
        if len(rows) and sums[0] <= limit:
            found, time = fastest_schedule(sizes, limits, hurries, rows)
        if len(found) and time <= limit:
            spent, nodes = time, other
            if time < least:
                best, least = found, time
                kept[:] = forced
        else:
            # In reverse order: two changes may have hit the same decision.
            for each in range(changes - 1, -1, -1):
                s, t, what, old = undo[each]
                forced[s, t, what] = old
    forced[:] = kept
    return best, least
