"""Kernels of the persistent dynamic program: the table, and the plan that it means; see `persistent` for the problem.

C(s,t,m) stands in row `_row_index(s, t)` of a packed triangle, m last. Every row is non-increasing in m, infinite below
the least feasible m and constant where nothing is recomputed any more. What keeps the cubic loop short: a split at s'
costs at least `fw(s..s'-1)` more than running s..t without recomputation, so only those m are tried at which the best
so far is dearer than that, and no further s' once there are none.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trainwright.kernels import Ints, Singles, compiled
from trainwright.plan.memory.operations import BACKWARD, DELETE, FORWARD_ALL, FORWARD_DROP, FORWARD_KEEP
from trainwright.plan.memory.sizes import Sizes

__all__ = ["fill_table", "least_bytes", "walk_table"]

_INF = np.float32(np.inf)
_BLOCK = 8


def _lesser_code(_context: Any, left: Any, right: Any) -> Any:
    """Give the code of `_lesser`: the lesser of two float32 that are not NaN, by one instruction.

    A loop over `x[i] = min(x[i], y)` is compiled to masked stores, which AMD's processors run five times slower.
    """

    def code(_: Any, builder: Any, __: Any, values: Any) -> Any:
        kind = values[0].type
        function = builder.module.declare_intrinsic("llvm.minnum", [kind], ir.FunctionType(kind, [kind, kind]))
        return builder.call(function, values, fastmath=("nnan", "nsz"))

    return types.float32(left, right), code


_lesser: Any = intrinsic(_lesser_code)


@compiled
def _row_index(s: int, t: int, n: int) -> int:
    # Row s has n - s entries, so that s n - s (s - 1) / 2 stand before it.
    return s * n - (s * (s - 1)) // 2 + (t - s)


@compiled
def _lower_by_split(target: Singles, right: Singles, left: Singles, cost: np.float32) -> None:
    """Lower target to cost + right + left where that is less."""
    for m in range(target.size):
        target[m] = _lesser(target[m], cost + (right[m] + left[m]))


@compiled
def _lower_by_option(target: Singles, below: Singles, cost: np.float32) -> None:
    for m in range(target.size):
        target[m] = _lesser(target[m], cost + below[m])


@compiled
def _to_slots(count: int, unit: int, up: int) -> int:
    """Divide by the unit, rounded up if `up` is unit - 1, down if 0, to the nearest if unit // 2."""
    return (count + up) // unit


@compiled
def fill_table(sizes: Sizes, grid: tuple[int, int, int]) -> tuple[Singles, Ints]:
    """Return the table and, for each row, the least feasible m (slots + 1 if none).

    `grid` is the bytes of a slot, what `_to_slots` adds, and the number of slots.
    """
    output, output_gradient = sizes.output, sizes.output_gradient
    no_grad_temporary, no_grad_forward = sizes.no_grad_temporary, sizes.no_grad_forward
    cheapest, first = sizes.cheapest, sizes.first
    forward, backward, saved = sizes.forward, sizes.backward, sizes.saved
    temporary, backward_temporary = sizes.temporary, sizes.backward_temporary
    # Alive beside a stage's own when the gradient of its output is there.
    gradient_bytes = output_gradient + sizes.later_gradients
    unit, up, slots = grid
    n = no_grad_forward.size
    table = np.empty((n * (n + 1) // 2, slots + 1), np.float32)
    start = np.full(n * (n + 1) // 2, slots + 1, np.int64)
    total = np.zeros(n + 1)
    total[1:] = np.cumsum(cheapest)
    for top in range(n - 1, -1, -_BLOCK):
        # Several s at each t, so that the rows (s', t), which they all read, stay in the cache.
        for place in range((n - max(0, top - _BLOCK + 1)) * _BLOCK):
            t, s = max(0, top - _BLOCK + 1) + place // _BLOCK, top - place % _BLOCK
            if s < 0 or s > t:
                continue
            # Seconds of s..t with nothing run again: no entry of this row is less.
            free = total[t + 1] - total[s]
            row = _row_index(s, t, n)
            target = table[row]
            target[:] = _INF
            # Save stage s with option o. In its forward the gradient of s..t already waits; in its backward the
            # gradients of its output and of its input are alive together.
            for o in range(first[s], first[s + 1]):
                need = max(
                    gradient_bytes[t + 1] + saved[o] + temporary[o],
                    output_gradient[s + 1] + saved[o] + gradient_bytes[s] + backward_temporary[o],
                )
                low = _to_slots(need, unit, up)
                cost = np.float32(forward[o] + backward[o])
                if s == t:
                    for m in range(low, slots + 1):
                        target[m] = min(target[m], cost)
                    start[row] = min(start[row], low)
                    continue
                width = _to_slots(saved[o], unit, up)
                below = _row_index(s + 1, t, n)
                low = max(low, start[below] + width)
                if low <= slots:
                    _lower_by_option(target[low:], table[below, low - width : slots + 1 - width], cost)
                    start[row] = min(start[row], low)
            if s == t:
                continue
            # Or run s..split-1 without gradients, then split..t beside the output of split-1, then s..split-1 again.
            # `need` is the largest peak of these forwards, `low0` its slots; slots from `high` on are as fast as
            # without recomputation.
            need, ran, low0 = np.int64(-1), 0.0, 0
            high = slots + 1
            for split in range(s + 1, t + 1):  # the right part begins at `split`
                j = split - 1
                ran += no_grad_forward[j]
                more = gradient_bytes[t + 1] + output[j + 1] + no_grad_temporary[j] + (output[j] if j > s else 0)
                if more > need:
                    need = more
                    low0 = _to_slots(need, unit, up)
                # The right part has the memory without the output that it begins with, the left part all of it.
                right, left = _row_index(split, t, n), _row_index(s, j, n)
                width = _to_slots(output[split], unit, up)
                low = max(low0, start[right] + width, start[left])
                limit = np.float32(free + ran)
                while high > low and target[high - 1] <= limit:
                    high -= 1
                start[row] = min(start[row], low)
                if low < high:
                    _lower_by_split(
                        target[low:high],
                        table[right, low - width : high - width],
                        table[left, low:high],
                        np.float32(ran),
                    )
                # No memory is left that further splits could improve, for their forwards take longer still.
                elif high <= low0:
                    break
    return table, start


@compiled
def walk_table(sizes: Sizes, table: Singles, start: Ints, grid: tuple[int, int, int]) -> tuple[Ints, float]:
    """Return the plan of C(1, n, slots) as rows (kind, stage from 1, option), and the seconds of its operations.

    Nothing was stored on the way up: at each node of the plan the choices are compared again, O(n) each.
    """
    output, output_gradient, no_grad_temporary = sizes.output, sizes.output_gradient, sizes.no_grad_temporary
    no_grad_forward, first, forward = sizes.no_grad_forward, sizes.first, sizes.forward
    backward, saved = sizes.backward, sizes.saved
    temporary, backward_temporary = sizes.temporary, sizes.backward_temporary
    # Alive beside a stage's own when the gradient of its output is there.
    gradient_bytes = output_gradient + sizes.later_gradients
    unit, up, slots = grid
    n = no_grad_forward.size
    # Rows of the plan; the array grows as the plan is walked.
    done = np.empty((64, 3), np.int64)
    count, seconds = 0, 0.0
    tasks = np.empty((4 * n + 8, 4), np.int64)  # (kind, stage or s, option or t, m); kind -1: a node still to expand
    tasks[0] = (-1, 0, n - 1, slots)
    waiting = 1
    while waiting:
        waiting -= 1
        kind, s, t, m = tasks[waiting, 0], tasks[waiting, 1], tasks[waiting, 2], tasks[waiting, 3]
        if count + n + 2 > len(done):
            longer = np.empty((2 * len(done) + n + 2, 3), np.int64)
            longer[:count] = done[:count]
            done = longer
        # A task that is a row: it has waited below the nodes that come before it.
        if kind >= 0:
            done[count] = (kind, s, t)
            count += 1
            if kind == BACKWARD:
                seconds += backward[t]
            continue
        # A node (s, t) with m slots: the options of stage s, then the splits, as in `fill_table`.
        best, option, split_at = np.float32(np.inf), -1, -1
        for o in range(first[s], first[s + 1]):
            need = max(
                gradient_bytes[t + 1] + saved[o] + temporary[o],
                output_gradient[s + 1] + saved[o] + gradient_bytes[s] + backward_temporary[o],
            )
            value = np.float32(forward[o] + backward[o])
            left = m
            if s < t:
                left = m - _to_slots(saved[o], unit, up)
                value = value + table[_row_index(s + 1, t, n), left] if left >= start[_row_index(s + 1, t, n)] else _INF
            if m >= _to_slots(need, unit, up) and value < best:
                best, option = value, o
        need, ran = np.int64(-1), 0.0
        for split in range(s + 1, t + 1):
            j = split - 1
            ran += no_grad_forward[j]
            need = max(need, gradient_bytes[t + 1] + output[j + 1] + no_grad_temporary[j] + (output[j] if j > s else 0))
            left = m - _to_slots(output[split], unit, up)
            right = _row_index(split, t, n)
            if m < _to_slots(need, unit, up):
                break
            if left < start[right] or m < start[_row_index(s, j, n)]:
                continue
            value = np.float32(ran) + table[right, left] + table[_row_index(s, j, n), m]
            if value < best:
                best, option, split_at = value, -1, split
        if option < 0 and split_at < 0:
            return np.empty((0, 3), np.int64), np.inf
        # Stage s is saved: its forward, the plan of s+1..t, its backward.
        if option >= 0:
            done[count] = (FORWARD_ALL, s + 1, option - first[s])
            count += 1
            seconds += forward[option]
            tasks[waiting] = (BACKWARD, s + 1, option, 0)
            waiting += 1
            if s < t:
                tasks[waiting] = (-1, s + 1, t, m - _to_slots(saved[option], unit, up))
                waiting += 1
            continue
        # Forwards up to the split, the plan of split..t, the output that it began with goes, then s..split-1 once more.
        for j in range(s, split_at):
            done[count] = (FORWARD_KEEP if j == s else FORWARD_DROP, j + 1, 0)
            count += 1
            seconds += no_grad_forward[j]
        # A stack: what is pushed last comes first.
        tasks[waiting] = (-1, s, split_at - 1, m)
        tasks[waiting + 1] = (DELETE, split_at, -1, 0)
        tasks[waiting + 2] = (-1, split_at, t, m - _to_slots(output[split_at], unit, up))
        waiting += 3
    return done[:count], seconds


@compiled
def least_bytes(sizes: Sizes) -> tuple[Ints, Ints]:
    """Return the least bytes of any persistent plan of s..t, packed as the table, and the choice that needs them.

    A choice is -1 - option for a forward with gradients, or the s' of a split; no slots, so exact to the byte.
    """
    output, output_gradient, no_grad_temporary = sizes.output, sizes.output_gradient, sizes.no_grad_temporary
    no_grad_forward, first, saved = sizes.no_grad_forward, sizes.first, sizes.saved
    temporary, backward_temporary = sizes.temporary, sizes.backward_temporary
    gradient_bytes = output_gradient + sizes.later_gradients
    n = no_grad_forward.size
    # Packed as the table is, but one number for each part: no memory to choose, the least is wanted.
    need = np.empty(n * (n + 1) // 2, np.int64)
    choice = np.empty(n * (n + 1) // 2, np.int64)
    for s in range(n - 1, -1, -1):
        for t in range(s, n):
            # The same recurrence in bytes: the least over the choices of the largest peak of each.
            best, which = np.iinfo(np.int64).max, 0
            for o in range(first[s], first[s + 1]):
                least = max(
                    gradient_bytes[t + 1] + saved[o] + temporary[o],
                    output_gradient[s + 1] + saved[o] + gradient_bytes[s] + backward_temporary[o],
                )
                if s < t:
                    least = max(least, saved[o] + need[_row_index(s + 1, t, n)])
                if least < best:
                    best, which = least, -1 - (o - first[s])
            # Or run to a split without gradients; `ran` is the largest peak of these forwards.
            ran = np.int64(0)
            for split in range(s + 1, t + 1):
                j = split - 1
                ran = max(
                    ran, gradient_bytes[t + 1] + output[j + 1] + no_grad_temporary[j] + (output[j] if j > s else 0)
                )
                # The right part runs beside the output that it begins with, the left part after that has gone.
                least = max(ran, output[split] + need[_row_index(split, t, n)], need[_row_index(s, j, n)])
                if least < best:
                    best, which = least, split
            need[_row_index(s, t, n)], choice[_row_index(s, t, n)] = best, which
    return need, choice
