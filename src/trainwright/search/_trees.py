# ruff: noqa: PLR0917 -- compiled code takes positional arguments only, and arrays in place of objects
"""Kernels of the forest: regression trees as arrays, grown, extended and asked without a Python object per node.

A node is 2 + words numbers of 64 bits side by side, one cache line: the cut, left child << 32 | column, and the mask of
a choice; `cuts` and `bits` are two views of the same memory. A row goes to left + ((x > cut) xor bit of code x): a
numeric split has an empty mask, a split of a choice and a leaf have cut = inf, and a leaf's left child is itself, so a
walk has no branch and may run on past its end. `leaf_of` holds each row's leaf by tree, -1 for rows not in it.

Draws are splitmix64 (Steele, Lea and Flood, OOPSLA 2014) of (node key, column, index); a child's key is a draw of its
parent's, so no draw depends on the order in which nodes are grown. Sums run in row order; fastmath is off.

Compiled code is cached beside this file, or, where that folder is read-only, in numba's user-wide cache folder;
NUMBA_CACHE_DIR overrides both.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["grow", "leaf_means", "leaf_variances", "predict", "scale"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)
_CHILD = 1 << 30  # a "column" that no space has: its draws are the keys of the two children
_TREE = 1 << 31  # likewise: its draws are the keys of the trees
_RANK = 1 << 20  # index of the draw that orders columns where only some are tried
_ATTEMPTS = 16  # random subsets drawn before one code is split off

Floats = NDArray[np.float64]
Ints = NDArray[np.int64] | NDArray[np.int32]
Bits = NDArray[np.uint64]
Flags = NDArray[np.bool_]
U64 = np.uint64
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def _jit(kernel: _Kernel) -> _Kernel:
    """Compile at first use for the types of that use; the annotations are for readers."""
    return cast(_Kernel, njit(cache=True, error_model="numpy", nogil=True)(kernel))


@_jit
def _mix(x: U64) -> U64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@_jit
def _draw(key: U64, column: int, index: int) -> U64:
    return _mix(_mix(key + _GOLDEN * np.uint64(column + 1)) + _GOLDEN * np.uint64(index + 1))


@_jit
def _uniform(key: U64, column: int, index: int) -> float:
    return np.float64(_draw(key, column, index) >> np.uint64(11)) * 2.0**-53


@_jit
def _bit(mask: Bits, code: int) -> int:
    return int((mask[code >> 6] >> np.uint64(code & 63)) & np.uint64(1))


@_jit
def _step(x: Floats, node: int, cuts: Floats, bits: Bits) -> int:
    """Return the child of `node` to which a row goes; a leaf returns itself."""
    value = x[int(bits[node, 1] & _LOW)]
    code = int(value) if value > 0.0 else 0
    return int(bits[node, 1] >> np.uint64(32)) + (int(value > cuts[node, 0]) ^ _bit(bits[node, 2:], code))


@_jit
def _random_subset(key: U64, column: int, weights: Floats, codes: int, mask: Bits) -> None:
    """Fill `mask` with random bits that part the codes of positive weight; the lowest one alone if luck fails."""
    first = 0
    while weights[first] == 0.0:
        first += 1
    for attempt in range(_ATTEMPTS):
        for word in range(len(mask)):
            mask[word] = _draw(key, column, attempt * len(mask) + word)
        for code in range(first + 1, codes):
            if weights[code] > 0.0 and _bit(mask, code) != _bit(mask, first):
                return
    for word in range(len(mask)):
        mask[word] = np.uint64(0)
    mask[first >> 6] = np.uint64(1) << np.uint64(first & 63)


@_jit
def _by_mean(weights: Floats, totals: Floats, codes: int) -> Ints:
    """Return the codes of positive weight in order of their mean target, ties by code."""
    ordered = np.empty(codes, np.int64)
    count = 0
    for code in range(codes):
        if weights[code] > 0.0:
            at = count
            mean = totals[code] / weights[code]
            while at > 0 and totals[ordered[at - 1]] / weights[ordered[at - 1]] > mean:
                ordered[at] = ordered[at - 1]
                at -= 1
            ordered[at] = code
            count += 1
    return ordered[:count]


@_jit
def _set_suffix(key: U64, column: int, ordered: Ints, first: int, mask: Bits) -> None:
    """Fill `mask` so that ordered[first:] goes right, ordered[:first] left, absent codes where chance sends them."""
    for word in range(len(mask)):
        mask[word] = _draw(key, column, word)
    for place in range(len(ordered)):
        bit = np.uint64(1) << np.uint64(ordered[place] & 63)
        if place >= first:
            mask[ordered[place] >> 6] |= bit
        else:
            mask[ordered[place] >> 6] &= ~bit


@_jit
def _gain(weight: float, total: float, side_weight: float, side_total: float) -> float:
    """Return the part of the sum of squares that a split explains, up to a constant of the node."""
    return side_total**2 / side_weight + (total - side_total) ** 2 / (weight - side_weight)


@_jit
def _sorted(values: Floats) -> Ints:
    """Return the positions that sort `values`, ties by position: a merge sort, bottom up."""
    count = len(values)
    order, spare = np.arange(count), np.empty(count, np.int64)
    width = 1
    while width < count:
        for start in range(0, count, 2 * width):
            left, right = start, min(start + width, count)
            middle, stop = right, min(start + 2 * width, count)
            for k in range(start, stop):
                if left < middle and (right >= stop or values[order[left]] <= values[order[right]]):
                    spare[k] = order[left]
                    left += 1
                else:
                    spare[k] = order[right]
                    right += 1
        order, spare = spare, order
        width *= 2
    return order


@_jit
def _best_cut(
    M: Floats, y: Floats, w: Floats, rows: Ints, c: int, weight: float, total: float
) -> tuple[float, float, float]:
    """Return (cut, weight left, total left) of the best cut of a numeric column over a node's rows."""
    values = np.empty(len(rows))
    for k in range(len(rows)):
        values[k] = M[rows[k], c]
    order = _sorted(values)
    side_weight, side_total, top = 0.0, 0.0, -1.0
    best = (-np.inf, 0.0, 0.0)
    for place in range(len(order) - 1):
        i = rows[order[place]]
        side_weight += w[i]
        side_total += w[i] * y[i]
        here, following = values[order[place]], values[order[place + 1]]
        if here < following:
            gain = _gain(weight, total, side_weight, side_total)
            if gain > top:
                top = gain
                middle = here + 0.5 * (following - here)
                best = (middle if middle < following else here, side_weight, side_total)
    return best


@_jit
def _best_prefix(ordered: Ints, weights: Floats, totals: Floats, weight: float, total: float) -> int:
    """Return the length of the best prefix of codes ordered by mean: the best subset of all (Breiman et al., 1984)."""
    side_weight, side_total, top, best = 0.0, 0.0, -1.0, 1
    for place in range(1, len(ordered)):
        side_weight += weights[ordered[place - 1]]
        side_total += totals[ordered[place - 1]]
        gain = _gain(weight, total, side_weight, side_total)
        if gain > top:
            top, best = gain, place
    return best


@_jit
def _split(
    M: Floats,
    y: Floats,
    w: Floats,
    rows: Ints,
    root: int,
    root_key: U64,
    delta: float,
    whole: float,
    codes: Ints,
    best: bool,
    tried: int,
    cuts: Floats,
    bits: Bits,
    leaf_of: Ints,
    size: int,
) -> int:
    """Grow the leaf `root`, which holds `rows` (ascending; reordered here), depth first; return the new node count.

    `best` False: one random cut per column and the best of these; True: the best cut of each column. `tried` columns
    are looked at per node. A split stands if (S_L^2/N_L + S_R^2/N_R - S^2/N) / whole, the weighted drop of the
    variance, is at least `delta`.
    """
    d = M.shape[1]
    low, high, tests = np.empty(d), np.empty(d), np.empty(d)
    weights, totals = np.empty(d), np.empty(d)  # of the rows that each column's split sends left
    masks = np.empty((d, bits.shape[1] - 2), np.uint64)
    usable = np.empty(d, np.bool_)
    code_weights, code_totals = np.empty(codes.max() + 1), np.empty(codes.max() + 1)
    spare = np.empty(len(rows), np.int64)
    stack = np.empty((len(rows) + 1, 3), np.int64)
    keys = np.empty(len(rows) + 1, np.uint64)
    stack[0, 0], stack[0, 1], stack[0, 2] = root, 0, len(rows)
    keys[0] = root_key
    depth = 1
    while depth > 0:
        depth -= 1
        node, start, stop = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        key = keys[depth]
        cuts[node, 0] = np.inf
        bits[node, 1] = np.uint64(node) << np.uint64(32)
        for word in range(2, bits.shape[1]):
            bits[node, word] = np.uint64(0)
        weight, total, least, greatest = 0.0, 0.0, np.inf, -np.inf
        for k in range(start, stop):
            i = rows[k]
            leaf_of[i] = node
            weight += w[i]
            total += w[i] * y[i]
            least = min(least, y[i])
            greatest = max(greatest, y[i])
        if stop - start < 2 or least == greatest:
            continue

        for c in range(d):
            low[c] = np.inf
            high[c] = -np.inf
        for k in range(start, stop):
            x = M[rows[k]]
            for c in range(d):
                low[c] = min(low[c], x[c])
                high[c] = max(high[c], x[c])
        varying = 0
        for c in range(d):
            usable[c] = low[c] < high[c]
            varying += usable[c]
        for _ in range(varying - tried):  # leave out the columns with the greatest draws
            last, last_draw = -1, np.uint64(0)
            for c in range(d):
                if usable[c] and (last < 0 or _draw(key, c, _RANK) > last_draw):
                    last, last_draw = c, _draw(key, c, _RANK)
            usable[last] = False

        for c in range(d):
            tests[c] = -np.inf
            weights[c] = 0.0
            totals[c] = 0.0
            if not usable[c]:
                continue
            if codes[c] == 0:
                if best:
                    tests[c], weights[c], totals[c] = _best_cut(M, y, w, rows[start:stop], c, weight, total)
                else:
                    tests[c] = low[c] + _uniform(key, c, 0) * (high[c] - low[c])
                    if tests[c] >= high[c]:
                        tests[c] = low[c]
                continue
            for code in range(codes[c]):
                code_weights[code] = 0.0
                code_totals[code] = 0.0
            for k in range(start, stop):
                i = rows[k]
                code_weights[int(M[i, c])] += w[i]
                code_totals[int(M[i, c])] += w[i] * y[i]
            if best or codes[c] > 64:  # a random subset of very many codes would tell nothing about each
                ordered = _by_mean(code_weights, code_totals, codes[c])
                if best:
                    first = _best_prefix(ordered, code_weights, code_totals, weight, total)
                else:
                    first = 1 + int(_uniform(key, c, _RANK + 1) * (len(ordered) - 1))
                _set_suffix(key, c, ordered, first, masks[c])
            else:
                _random_subset(key, c, code_weights, codes[c], masks[c])
            for code in range(codes[c]):
                if _bit(masks[c], code) == 0:
                    weights[c] += code_weights[code]
                    totals[c] += code_totals[code]
        if not best:  # the sums of all numeric columns in one pass, which the compiler turns into vectors
            for k in range(start, stop):
                i = rows[k]
                x = M[i]
                value = w[i] * y[i]
                for c in range(d):
                    goes = 1.0 if x[c] <= tests[c] else 0.0
                    weights[c] += goes * w[i]
                    totals[c] += goes * value
        chosen, top = -1, -1.0
        for c in range(d):
            if usable[c]:
                gain = _gain(weight, total, weights[c], totals[c])
                if gain > top:
                    chosen, top = c, gain
        if chosen < 0 or max(0.0, top - total**2 / weight) / whole < delta:
            continue

        bits[node, 1] = np.uint64(size) << np.uint64(32) | np.uint64(chosen)
        if codes[chosen] > 0:
            for word in range(masks.shape[1]):
                bits[node, 2 + word] = masks[chosen, word]
        else:
            cuts[node, 0] = tests[chosen]
        keep, away = start, 0
        for k in range(start, stop):  # stable, so that sums go on to run in row order
            if _step(M[rows[k]], node, cuts, bits) == size:
                rows[keep] = rows[k]
                keep += 1
            else:
                spare[away] = rows[k]
                away += 1
        for k in range(away):
            rows[keep + k] = spare[k]
        stack[depth, 0], stack[depth, 1], stack[depth, 2] = size + 1, keep, stop
        keys[depth] = _draw(key, _CHILD, 1)
        stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = size, start, keep
        keys[depth + 1] = _draw(key, _CHILD, 0)
        depth += 2
        size += 2
    return size


@_jit
def order_in(losses: Floats, order: Ints, finite: int, row: int) -> None:
    """Insert `row` into the first `finite` entries of `order` [objectives, rows], which sort `losses`; O(finite)."""
    for j in range(order.shape[0]):
        value = losses[row, j]
        low, high = 0, finite
        while low < high:
            middle = (low + high) // 2
            if losses[order[j, middle], j] <= value:
                low = middle + 1
            else:
                high = middle
        for place in range(finite, low, -1):
            order[j, place] = order[j, place - 1]
        order[j, low] = row


@_jit
def scale(
    losses: Floats, failed: Flags, minmax: bool, lenient: bool, order: Ints, finite: int, count: int, targets: Floats
) -> None:
    """Fill targets [objectives, rows] with the losses of the first `count` rows scaled to [0, 1]; O(count).

    Losses above Q3 + 1.5 IQR are clipped; then (mean rank - 1/2) / finite, or (loss - min) / (max - min) if `minmax`.
    A failed row gets the worst target, or the mean one if `lenient`; 1/2 if no row is finite.
    """
    for j in range(order.shape[0]):
        bad = 0.5
        if finite > 0:
            total = 0.0
            quartiles = np.empty(2)
            for q in range(2):
                place = (0.25 + 0.5 * q) * (finite - 1)
                below = int(place)
                above = min(below + 1, finite - 1)
                share = place - below
                quartiles[q] = (1.0 - share) * losses[order[j, below], j] + share * losses[order[j, above], j]
            fence = quartiles[1] + 1.5 * (quartiles[1] - quartiles[0])
            least = losses[order[j, 0], j]
            greatest = min(fence, losses[order[j, finite - 1], j])
            start = 0
            while start < finite:
                value = min(fence, losses[order[j, start], j])
                stop = start + 1
                while stop < finite and min(fence, losses[order[j, stop], j]) == value:
                    stop += 1
                if not minmax:
                    target = 0.5 * (start + stop) / finite
                elif least < greatest:  # halves, since the range of doubles is no double
                    target = (0.5 * value - 0.5 * least) / (0.5 * greatest - 0.5 * least)
                else:
                    target = 0.5
                for place in range(start, stop):
                    targets[j, order[j, place]] = target
                total += (stop - start) * target
                bad = total / finite if lenient else target
                start = stop
        for i in range(count):
            if failed[i]:
                targets[j, i] = bad


@_jit
def _mixed(targets: Floats, mix: Floats, count: int) -> Floats:
    """Return the weighted sum of the objectives' targets: linear scalarisation."""
    y = np.zeros(count)
    for j in range(len(mix)):
        for i in range(count):
            y[i] += mix[j] * targets[j, i]
    return y


@_jit
def grow(
    M: Floats,
    losses: Floats,
    failed: Flags,
    minmax: bool,
    lenient: bool,
    order: Ints,
    finite: int,
    start: int,
    stop: int,
    born: Ints,
    mix: Floats,
    w: Floats,
    key: U64,
    deltas: Floats,
    codes: Ints,
    best: bool,
    tried: int,
    cuts: Floats,
    bits: Bits,
    leaf_of: Ints,
    sizes: Ints,
    targets: Floats,
) -> int:
    """Take rows start .. stop - 1, one after the other: rank each, then give it to every tree.

    A tree is planted from its members (leaf_of = 0) once born[t] rows are there; from then on a new row goes down to
    its leaf, which is split again if it can be. Returns the number of finite rows. A row costs plain scans of all
    rows so far, O(trees * row); planting costs O(row * columns * depth), twice a level: ranges, then sums.
    """
    for row in range(start, stop):
        if not failed[row]:
            order_in(losses, order, finite, row)
            finite += 1
        scaled = False
        for t in range(len(sizes)):
            leaf = 0
            if row + 1 > born[t] and w[t, row] > 0.0:
                after = _step(M[row], 0, cuts[t], bits[t])
                while after != leaf:
                    leaf = after
                    after = _step(M[row], leaf, cuts[t], bits[t])
                leaf_of[t, row] = leaf
            elif row + 1 == born[t]:
                sizes[t] = 1
            else:
                continue
            if not scaled:
                scale(losses, failed, minmax, lenient, order, finite, row + 1, targets)
                scaled = True
            count, whole = 0, 0.0
            for i in range(row + 1):
                count += leaf_of[t, i] == leaf
                whole += w[t, i] if leaf_of[t, i] >= 0 else 0.0
            rows = np.empty(count, np.int64)
            count = 0
            for i in range(row + 1):
                if leaf_of[t, i] == leaf:
                    rows[count] = i
                    count += 1
            y = _mixed(targets, mix[t], row + 1)
            stamp = _draw(_draw(key, _TREE, t), _TREE, row + 1)
            sizes[t] = _split(
                M, y, w[t], rows, leaf, stamp, deltas[row], whole, codes, best, tried,
                cuts[t], bits[t], leaf_of[t], sizes[t],
            )  # fmt: skip
    return finite


@_jit
def leaf_means(targets: Floats, mix: Floats, leaf_of: Ints, w: Floats, sizes: Ints, count: int, means: Floats) -> None:
    """Fill means [trees, nodes] with the weighted mean target of each leaf's rows; O(trees * count)."""
    y = _mixed(targets, mix, count)
    for t in range(len(sizes)):
        weight, total = np.zeros(sizes[t]), np.zeros(sizes[t])
        for i in range(count):
            if leaf_of[t, i] >= 0:
                weight[leaf_of[t, i]] += w[t, i]
                total[leaf_of[t, i]] += w[t, i] * y[i]
        for node in range(sizes[t]):
            means[t, node] = total[node] / weight[node] if weight[node] > 0.0 else 0.5


@_jit
def leaf_variances(
    targets: Floats, mix: Floats, leaf_of: Ints, w: Floats, sizes: Ints, count: int, means: Floats, variances: Floats
) -> None:
    """Fill variances [trees, nodes] with the weighted variance of the targets in each leaf, given their means."""
    y = _mixed(targets, mix, count)
    for t in range(len(sizes)):
        weight, total = np.zeros(sizes[t]), np.zeros(sizes[t])
        for i in range(count):
            if leaf_of[t, i] >= 0:
                weight[leaf_of[t, i]] += w[t, i]
                total[leaf_of[t, i]] += w[t, i] * (y[i] - means[t, leaf_of[t, i]]) ** 2
        for node in range(sizes[t]):
            variances[t, node] = total[node] / weight[node] if weight[node] > 0.0 else 0.0


@_jit
def predict(M: Floats, cuts: Floats, bits: Bits, means: Floats, leaves: Ints, mu: Floats, sd: Floats) -> None:
    """Fill leaves [trees, rows of M], and mean and standard deviation over trees of the rows' leaf means.

    Eight rows walk at once, which hides the latency of their loads.
    """
    count, trees = leaves.shape[1], leaves.shape[0]
    at = np.empty(8, np.int64)
    for t in range(trees):
        for start in range(0, count, 8):
            width = min(8, count - start)
            for k in range(width):
                at[k] = 0
            moved = True
            while moved:
                moved = False
                for k in range(width):
                    after = _step(M[start + k], at[k], cuts[t], bits[t])
                    moved |= after != at[k]
                    at[k] = after
            for k in range(width):
                leaves[t, start + k] = at[k]
    for i in range(count):
        total, square = 0.0, 0.0
        for t in range(trees):
            total += means[t, leaves[t, i]]
        mu[i] = total / trees
        for t in range(trees):
            square += (means[t, leaves[t, i]] - mu[i]) ** 2
        sd[i] = np.sqrt(square / trees)
