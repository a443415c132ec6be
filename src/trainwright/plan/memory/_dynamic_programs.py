"""Kernels of the dynamic programs for rematerialisation: fill their tables, and choose at a node.

The problems are in `persistent` and, for pipelines, `plan/pipeline/partition`. Stages are counted from 0.

The table of the persistent program has C(s,t,m) in row `_row_index(s, t)` of a packed triangle, m last. Every row is
non-increasing in m, infinite below the least feasible m and constant where nothing is recomputed any more. What keeps
the cubic loop short: a split at s' costs at least `fw(s..s'-1)` more than running s..t without recomputation, so only
those m are tried at which the best so far is dearer than that, and no further s' once there are none.

No choice is stored when a table is filled: they are compared again at the few nodes of a plan.
"""

from typing import Any

import numpy as np

from trainwright.kernels import HAS_NUMBA, Ints, Singles, compiled
from trainwright.plan.memory.sizes import Sizes

__all__ = ["choose_persistent", "fill_across", "fill_table", "least_bytes"]

_INF = np.float32(np.inf)
_BLOCK = 8


def _compile_lesser() -> Any:
    """Return what gives the lesser of two float32 that are not NaN, in compiled code by one instruction.

    A loop over `x[i] = min(x[i], y)` is compiled to masked stores, which AMD's processors run five times slower.
    """
    if not HAS_NUMBA:
        return np.minimum
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    def lesser_code(_context: Any, left: Any, right: Any) -> Any:
        def code(_: Any, builder: Any, __: Any, values: Any) -> Any:
            kind = values[0].type
            function = builder.module.declare_intrinsic("llvm.minnum", [kind], ir.FunctionType(kind, [kind, kind]))
            return builder.call(function, values, fastmath=("nnan", "nsz"))

        return types.float32(left, right), code

    return intrinsic(lesser_code)


_lesser: Any = _compile_lesser()


@compiled
def _row_index(s: int, t: int, n: int) -> int:
    # Row s has n - s entries, so that s n - s (s - 1) / 2 stand before it.
    return s * n - (s * (s - 1)) // 2 + (t - s)


@compiled
def _lower_by_split(target: Singles, right: Singles, left: Singles, cost: np.float32) -> None:
    """Lower target to cost + right + left where that is less."""
    if not HAS_NUMBA:
        target[:] = _lesser(target, cost + (right + left))
        return
    for m in range(target.size):
        target[m] = _lesser(target[m], cost + (right[m] + left[m]))


@compiled
def _lower_by_option(target: Singles, below: Singles, cost: np.float32) -> None:
    if not HAS_NUMBA:
        target[:] = _lesser(target, cost + below)
        return
    for m in range(target.size):
        target[m] = _lesser(target[m], cost + below[m])


@compiled
def _to_slots(count: int, unit: int, up: int) -> int:
    """Divide by the unit, rounded up if `up` is unit - 1, down if 0, to the nearest if unit // 2."""
    return (count + up) // unit


@compiled
def _saving_peak(sizes: Sizes, s: int, t: int, o: int) -> int:
    """Return the bytes that saving stage s with option o needs, before s + 1..t run and after."""
    # In its forward the gradient of s..t already waits; in its backward the gradients of its output and of its input
    # are alive together.
    waiting = sizes.output_gradient[t + 1] + sizes.later_gradients[t + 1] + sizes.temporary[o]
    made = sizes.output_gradient[s + 1] + sizes.output_gradient[s] + sizes.later_gradients[s]
    # Where what is fixed has gone by then, less than nothing may be needed on top of it.
    peak: int = max(0, sizes.saved[o] + max(waiting, made + sizes.backward_temporary[o]))
    return peak


@compiled
def _forward_bytes(sizes: Sizes) -> Ints:
    """Return the bytes of each stage's forward without gradients, with its input and output."""
    return sizes.output[:-1] + sizes.output[1:] + sizes.no_grad_temporary


@compiled
def _sweep_peak(sizes: Sizes, s: int, t: int, j: int) -> int:
    """Return the bytes of stage j's forward without gradients, in a sweep from s on of which s has the input paid."""
    waiting = sizes.output_gradient[t + 1] + sizes.later_gradients[t + 1]
    peak: int = waiting + sizes.output[j + 1] + sizes.no_grad_temporary[j] + (sizes.output[j] if j > s else 0)
    return peak


@compiled
def fill_table(sizes: Sizes, grid: tuple[int, int, int]) -> Singles:
    """Return the table; `grid` is the bytes of a slot, what `_to_slots` adds, and the number of slots."""
    output, no_grad_forward, first = sizes.output, sizes.no_grad_forward, sizes.first
    forward, backward, saved = sizes.forward, sizes.backward, sizes.saved
    gradient_bytes, beside = sizes.output_gradient + sizes.later_gradients, _forward_bytes(sizes)
    unit, up, slots = grid
    n = no_grad_forward.size
    table = np.empty((n * (n + 1) // 2, slots + 1), np.float32)
    # Of each row the least feasible m, slots + 1 if there is none.
    start = np.full(n * (n + 1) // 2, slots + 1, np.int64)
    total = np.zeros(n + 1)
    total[1:] = np.cumsum(sizes.cheapest)
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
            # Save stage s with option o.
            for o in range(first[s], first[s + 1]):
                low = _to_slots(_saving_peak(sizes, s, t, o), unit, up)
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
            need, ran, low0 = -1, 0.0, 0
            high = slots + 1
            for split in range(s + 1, t + 1):  # the right part begins at `split`
                j = split - 1
                ran += no_grad_forward[j]
                # As `_sweep_peak`, written out: a call would double the time of this loop.
                more = gradient_bytes[t + 1] + beside[j] - (output[j] if j == s else 0)
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
    return table


@compiled
def choose_persistent(
    sizes: Sizes, table: Singles, grid: tuple[int, int, int], node: tuple[int, int, int]
) -> tuple[int, int]:
    """Return the option and the split (each -1 if not chosen) of a node (s, t, m)."""
    unit, up, _ = grid
    s, t, m = node
    n = sizes.no_grad_forward.size
    best, option, split_at = _INF, -1, -1
    for o in range(sizes.first[s], sizes.first[s + 1]):
        left = m - _to_slots(sizes.saved[o], unit, up) if s < t else m
        if left < 0 or m < _to_slots(_saving_peak(sizes, s, t, o), unit, up):
            continue
        value = np.float32(sizes.forward[o] + sizes.backward[o])
        if s < t:
            value += table[_row_index(s + 1, t, n), left]
        if value < best:
            best, option = value, o
    need, ran = -1, 0.0
    for split in range(s + 1, t + 1):
        ran += sizes.no_grad_forward[split - 1]
        need = max(need, _sweep_peak(sizes, s, t, split - 1))
        if m < _to_slots(need, unit, up):
            break
        left = m - _to_slots(sizes.output[split], unit, up)
        if left < 0:
            continue
        value = np.float32(ran) + table[_row_index(split, t, n), left] + table[_row_index(s, split - 1, n), m]
        if value < best:
            best, option, split_at = value, -1, split
    return option, split_at


@compiled
def least_bytes(sizes: Sizes) -> tuple[Ints, Ints]:
    """Return the least bytes of any persistent plan of s..t, packed as the table, and the choice that needs them.

    A choice is -1 - option for a forward with gradients, or the s' of a split; no slots, so exact to the byte.
    """
    output, first, saved = sizes.output, sizes.first, sizes.saved
    gradient_bytes, beside = sizes.output_gradient + sizes.later_gradients, _forward_bytes(sizes)
    n = sizes.no_grad_forward.size
    # Packed as the table is, but one number for each part: no memory to choose, the least is wanted.
    need = np.empty(n * (n + 1) // 2, np.int64)
    choice = np.empty(n * (n + 1) // 2, np.int64)
    for s in range(n - 1, -1, -1):
        for t in range(s, n):
            # The same recurrence in bytes: the least over the choices of the largest peak of each.
            best, which = np.iinfo(np.int64).max, 0
            for o in range(first[s], first[s + 1]):
                least = _saving_peak(sizes, s, t, o)
                if s < t:
                    least = max(least, saved[o] + need[_row_index(s + 1, t, n)])
                if least < best:
                    best, which = least, -1 - (o - first[s])
            # Or run to a split without gradients; `ran` is the largest peak of these forwards.
            ran = 0
            for split in range(s + 1, t + 1):
                j = split - 1
                ran = max(ran, gradient_bytes[t + 1] + beside[j] - (output[j] if j == s else 0))
                # The right part runs beside the output that it begins with, the left part after that has gone.
                least = max(ran, output[split] + need[_row_index(split, t, n)], need[_row_index(s, j, n)])
                if least < best:
                    best, which = least, split
            need[_row_index(s, t, n)], choice[_row_index(s, t, n)] = best, which
    return need, choice


@compiled
def fill_across(sizes: Sizes, table: Singles, t: int, grid: tuple[int, int, int]) -> Singles:
    """Return D [t + 1, slots + 1, slots + 1] for stages s..t counted from 0, m, and k; infinite where nothing fits."""
    unit, up, slots = grid
    n = sizes.no_grad_forward.size
    found = np.full((t + 1, slots + 1, slots + 1), np.float32(np.inf), np.float32)
    for s in range(t, -1, -1):
        # The sweep: forwards of s..t that keep nothing, each beside its own input; its largest peak is the least m.
        total = 0.0
        need, sweep = 0, 0
        for j in range(s, t + 1):
            total += sizes.no_grad_forward[j]
            step = sizes.output[j + 1] + sizes.no_grad_temporary[j] + (sizes.output[j] if j > s else 0)
            sweep = max(sweep, step)
        low = _to_slots(sweep, unit, up)
        # Drop everything between forward and backward, and run s..t again by the table C.
        for m in range(low, slots + 1):
            value = np.float32(total) + table[_row_index(s, t, n), m]
            for k in range(slots + 1):
                found[s, m, k] = min(found[s, m, k], value)
        # Or save stage s with option o, which takes slots both of the peak (m) and of what is held (k).
        for o in range(sizes.first[s], sizes.first[s + 1]):
            least = _saving_peak(sizes, s, t, o)
            width = _to_slots(sizes.saved[o], unit, up)
            cost = np.float32(sizes.forward[o] + sizes.backward[o])
            for m in range(max(width, _to_slots(least, unit, up)), slots + 1):
                for k in range(width, slots + 1):
                    # What is saved counts in the peak and among what is held, so both get smaller for the rest.
                    rest = np.float32(0.0) if s == t else found[s + 1, m - width, k - width]
                    found[s, m, k] = min(found[s, m, k], cost + rest)
        # Or keep the output of split-1 alone of s..split-1, which runs again by the table C.
        ran = 0.0
        for split in range(s + 1, t + 1):
            j = split - 1
            ran += sizes.no_grad_forward[j]
            need = max(need, _sweep_peak(sizes, s, t, j))
            width = _to_slots(sizes.output[split], unit, up)
            for m in range(max(width, _to_slots(need, unit, up)), slots + 1):
                left = np.float32(ran) + table[_row_index(s, j, n), m]
                # Where s..split-1 cannot run again in m slots, no k helps.
                if left == np.float32(np.inf):
                    continue
                for k in range(width, slots + 1):
                    found[s, m, k] = min(found[s, m, k], left + found[split, m - width, k - width])
    return found
