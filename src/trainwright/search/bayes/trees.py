# ruff: noqa: PLR0917 -- compiled code takes positional arguments only, and arrays in place of objects
"""Kernels of the forest: regression trees as arrays, grown, extended and asked without a Python object per node.

A node is two numbers of 64 bits, so that four share a cache line: the cut of a number or the mask of a choice, and
left child << 32 | choice << 31 | column; `cuts` and `bits` are two views of the same memory. A row goes to left + 1 if
x > cut, or if bit x of the mask is set, else to left. A leaf has cut = inf and is its own left child, so a walk has no
branch and may run on past its end. A choice has at most 64 codes; one of more is told as a number. `leaf_of` holds
each row's leaf by tree, -1 for rows not in it.

Draws are splitmix64 (Steele, Lea and Flood, OOPSLA 2014) of (node key, column, index); a child's key is a draw of its
parent's, so no draw depends on the order in which nodes are grown. Sums run in row order; fastmath is off.
"""

import numpy as np

from trainwright.kernels import Bits, Floats, Ints, compiled

__all__ = ["grow", "leaf_means", "predict"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_COLUMN = np.uint64(0x7FFFFFFF)
_CHOICE = np.uint64(0x80000000)
_CHILD = 1 << 30  # a "column" that no space has: its draws are the keys of the two children
_TREE = 1 << 31  # likewise: its draws are the keys of the trees
_ATTEMPTS = 16  # random subsets drawn before one code is split off

U64 = np.uint64


@compiled
def _mix(x: U64) -> U64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def _draw(key: U64, column: int, index: int) -> U64:
    return _mix(_mix(key + _GOLDEN * np.uint64(column + 1)) + _GOLDEN * np.uint64(index + 1))


@compiled
def _uniform(key: U64, column: int, index: int) -> float:
    return np.float64(_draw(key, column, index) >> np.uint64(11)) * 2.0**-53


@compiled
def _bit(mask: U64, code: int) -> int:
    return int((mask >> np.uint64(code)) & np.uint64(1))


@compiled
def _step(M: Floats, i: int, node: int, cuts: Floats, bits: Bits) -> int:
    """Return the child of `node` to which row `i` goes; a leaf returns itself."""
    link = bits[node, 1]
    value = M[i, np.int64(link & _COLUMN)]
    if link & _CHOICE:
        right = (bits[node, 0] >> np.uint64(np.int64(value))) & np.uint64(1)
    else:
        right = np.uint64(value > cuts[node, 0])
    return np.int64((link >> np.uint64(32)) + right)  # type: ignore[return-value]  # only fixed widths compile


@compiled
def _random_subset(key: U64, column: int, counts: Floats, codes: int) -> U64:
    """Return random bits that part the codes that rows have; the lowest one alone if luck fails."""
    first = 0
    while counts[first] == 0.0:
        first += 1
    for attempt in range(_ATTEMPTS):
        mask = _draw(key, column, attempt)
        for code in range(first + 1, codes):
            if counts[code] > 0.0 and _bit(mask, code) != _bit(mask, first):
                return mask
    return np.uint64(1) << np.uint64(first)


@compiled
def _gain(count: float, total: float, side_count: float, side_total: float) -> float:
    """Return the part of the sum of squares that a split explains, up to a constant of the node."""
    return side_total**2 / side_count + (total - side_total) ** 2 / (count - side_count)


@compiled
def _subset_cut(
    M: Floats, y: Floats, rows: Ints, start: int, stop: int, c: int, key: U64, codes: int,
    code_counts: Floats, code_totals: Floats, sets: Bits,
) -> tuple[float, float]:  # fmt: skip
    """Set sets[c] to the codes that go right and return (rows left, total left), over a node's rows."""
    for code in range(codes):
        code_counts[code] = 0.0
        code_totals[code] = 0.0
    for k in range(start, stop):
        i = rows[k]
        code_counts[int(M[i, c])] += 1.0
        code_totals[int(M[i, c])] += y[i]
    sets[c] = _random_subset(key, c, code_counts, codes)
    side_count, side_total = 0.0, 0.0
    for code in range(codes):
        if _bit(sets[c], code) == 0:
            side_count += code_counts[code]
            side_total += code_totals[code]
    return side_count, side_total


@compiled
def _find_ranges(M: Floats, rows: Ints, start: int, stop: int, low: Floats, high: Floats) -> None:
    """Fill low and high with the range of each column within a node; a column without a range cannot split it."""
    low[:] = np.inf
    high[:] = -np.inf
    for k in range(start, stop):
        x = M[rows[k]]
        for c in range(len(low)):
            low[c] = min(low[c], x[c])
            high[c] = max(high[c], x[c])


@compiled
def _draw_tests(
    M: Floats, y: Floats, rows: Ints, start: int, stop: int, key: U64, codes: Ints, low: Floats, high: Floats,
    tests: Floats, counts: Floats, totals: Floats, code_counts: Floats, code_totals: Floats, sets: Bits,
) -> None:  # fmt: skip
    """Draw one random test per column, a threshold or a subset of the codes, and sum up the rows that it sends left."""
    d = len(tests)
    for c in range(d):
        tests[c] = -np.inf
        counts[c] = 0.0
        totals[c] = 0.0
        if low[c] >= high[c]:
            continue
        if codes[c] == 0:
            tests[c] = low[c] + _uniform(key, c, 0) * (high[c] - low[c])
            if tests[c] >= high[c]:  # rounding must not leave the right side empty
                tests[c] = low[c]
            continue
        counts[c], totals[c] = _subset_cut(M, y, rows, start, stop, c, key, codes[c], code_counts, code_totals, sets)
    # The sums of all numeric columns in one pass, which the compiler turns into vectors.
    for k in range(start, stop):
        i = rows[k]
        x = M[i]
        value = y[i]
        for c in range(d):
            goes = 1.0 if x[c] <= tests[c] else 0.0
            counts[c] += goes
            totals[c] += goes * value


@compiled
def _best_test(count: float, total: float, low: Floats, high: Floats, counts: Floats, totals: Floats) -> int:
    """Return the column whose test explains most of the variance of the targets, -1 if none can split the node."""
    chosen, top = -1, -1.0
    for c in range(len(counts)):
        if low[c] < high[c]:
            gain = _gain(count, total, counts[c], totals[c])
            if gain > top:
                chosen, top = c, gain
    return chosen


@compiled
def _part_rows(
    M: Floats,
    rows: Ints,
    start: int,
    stop: int,
    node: int,
    left: int,
    cuts: Floats,
    bits: Bits,
    spare: Ints,
) -> int:
    """Reorder a node's rows so that those of child `left` come first; return where the others begin.

    Stable, so that sums go on to run in row order.
    """
    keep, away = start, 0
    for k in range(start, stop):
        if _step(M, rows[k], node, cuts, bits) == left:
            rows[keep] = rows[k]
            keep += 1
        else:
            spare[away] = rows[k]
            away += 1
    for k in range(away):
        rows[keep + k] = spare[k]
    return keep


@compiled
def _split(
    M: Floats, y: Floats, rows: Ints, root: int, root_key: U64, codes: Ints,
    least_rows: int, cuts: Floats, bits: Bits, leaf_of: Ints, size: int,
) -> int:  # fmt: skip
    """Grow the leaf `root`, which holds `rows` (ascending; reordered here), depth first; return the new node count.

    Each node takes the best of one random cut per column; a node of fewer than `least_rows` rows stays whole.
    """
    d = M.shape[1]
    low, high, tests = np.empty(d), np.empty(d), np.empty(d)
    counts, totals = np.empty(d), np.empty(d)  # of the rows that each column's test sends left
    sets = np.empty(d, np.uint64)
    code_counts, code_totals = np.empty(codes.max() + 1), np.empty(codes.max() + 1)
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
        # The node begins as a leaf; sums of its targets, and whether they differ at all.
        count, total, least, greatest = 0.0, 0.0, np.inf, -np.inf
        for k in range(start, stop):
            i = rows[k]
            leaf_of[i] = node
            count += 1.0
            total += y[i]
            least = min(least, y[i])
            greatest = max(greatest, y[i])
        if stop - start < least_rows or least == greatest:
            continue
        _find_ranges(M, rows, start, stop, low, high)
        _draw_tests(
            M, y, rows, start, stop, key, codes, low, high, tests, counts, totals, code_counts, code_totals, sets
        )
        chosen = _best_test(count, total, low, high, counts, totals)
        if chosen < 0:
            continue
        # The node becomes a split; its children are the next two nodes.
        bits[node, 1] = np.uint64(size) << np.uint64(32) | np.uint64(chosen)
        if codes[chosen] == 0:
            cuts[node, 0] = tests[chosen]
        else:
            bits[node, 0] = sets[chosen]
            bits[node, 1] |= _CHOICE
        keep = _part_rows(M, rows, start, stop, node, size, cuts, bits, spare)
        # Both children are still to be grown, the left one first. Their keys are draws of their parent's.
        stack[depth, 0], stack[depth, 1], stack[depth, 2] = size + 1, keep, stop
        keys[depth] = _draw(key, _CHILD, 1)
        stack[depth + 1, 0], stack[depth + 1, 1], stack[depth + 1, 2] = size, start, keep
        keys[depth + 1] = _draw(key, _CHILD, 0)
        depth += 2
        size += 2
    return size


@compiled
def grow(
    M: Floats, y: Floats, first: int, stop: int, born: Ints, key: U64, codes: Ints,
    least_rows: int, cuts: Floats, bits: Bits, leaf_of: Ints, heads: Ints, chain: Ints,
    sizes: Ints,
) -> None:  # fmt: skip
    """Give rows first to stop - 1, the latest, to every tree that is planted by then: when born[t] rows are there.

    The rows of a leaf are a chain, the latest first: heads [trees, nodes], chain [trees, rows], ended by -1.
    Planting splits the root, which holds all members (leaf_of = 0): O(row * columns * depth), twice a level for ranges
    and sums. From then on a row goes down to its leaf, which is split again if it can be.
    """
    for t in range(len(sizes)):
        for row in range(max(first, born[t] - 1), stop):
            leaf = 0
            if row + 1 == born[t]:
                sizes[t] = 1
                heads[t, 0] = -1
                for i in range(row + 1):
                    if leaf_of[t, i] == 0:
                        chain[t, i] = heads[t, 0]
                        heads[t, 0] = i
            else:
                after = _step(M, row, 0, cuts[t], bits[t])
                while after != leaf:
                    leaf = after
                    after = _step(M, row, leaf, cuts[t], bits[t])
                leaf_of[t, row] = leaf
                chain[t, row] = heads[t, leaf]
                heads[t, leaf] = row
            # Collect the rows of the leaf from its chain, in ascending order.
            count = 0
            i = heads[t, leaf]
            while i >= 0:
                count += 1
                i = chain[t, i]
            rows = np.empty(count, np.int64)
            i = heads[t, leaf]
            for k in range(count - 1, -1, -1):
                rows[k] = i
                i = chain[t, i]
            stamp = _draw(_draw(key, _TREE, t), _TREE, row + 1)
            before = sizes[t]
            sizes[t] = _split(M, y, rows, leaf, stamp, codes, least_rows, cuts[t], bits[t], leaf_of[t], sizes[t])
            # The leaf was split: its rows move to the chains of the new leaves.
            if sizes[t] > before:
                for node in range(before, sizes[t]):
                    heads[t, node] = -1
                for k in range(count):
                    node = leaf_of[t, rows[k]]
                    chain[t, rows[k]] = heads[t, node]
                    heads[t, node] = rows[k]


@compiled
def leaf_means(y: Floats, leaf_of: Ints, sizes: Ints, means: Floats) -> None:
    """Fill means [trees, nodes] with the mean of each leaf's targets; O(trees * rows)."""
    for t in range(len(sizes)):
        count, total = np.zeros(sizes[t]), np.zeros(sizes[t])
        for i in range(len(y)):
            if leaf_of[t, i] >= 0:
                count[leaf_of[t, i]] += 1.0
                total[leaf_of[t, i]] += y[i]
        for node in range(sizes[t]):
            means[t, node] = total[node] / count[node] if count[node] > 0.0 else 0.5


@compiled
def predict(M: Floats, cuts: Floats, bits: Bits, means: Floats, leaves: Ints, mu: Floats, sd: Floats) -> None:
    """Fill leaves [trees, rows of M], and mean and standard deviation over trees of the rows' leaf means.

    Eight rows walk at once, each in a register: that hides the latency of their loads and halves the time.
    """
    count, trees = leaves.shape[1], leaves.shape[0]
    for t in range(trees):
        c, b = cuts[t], bits[t]
        for i in range(0, count, 8):
            last = count - 1  # rows beyond it are walked as it is
            i1, i2, i3, i4, i5, i6, i7 = (
                min(i + 1, last), min(i + 2, last), min(i + 3, last),
                min(i + 4, last), min(i + 5, last), min(i + 6, last), min(i + 7, last),
            )  # fmt: skip
            n0 = n1 = n2 = n3 = n4 = n5 = n6 = n7 = 0
            while True:
                s0 = _step(M, i, n0, c, b)
                s1 = _step(M, i1, n1, c, b)
                s2 = _step(M, i2, n2, c, b)
                s3 = _step(M, i3, n3, c, b)
                s4 = _step(M, i4, n4, c, b)
                s5 = _step(M, i5, n5, c, b)
                s6 = _step(M, i6, n6, c, b)
                s7 = _step(M, i7, n7, c, b)
                stay = (
                    s0 == n0 and s1 == n1 and s2 == n2 and s3 == n3 and s4 == n4 and s5 == n5 and s6 == n6 and s7 == n7
                )
                n0, n1, n2, n3, n4, n5, n6, n7 = s0, s1, s2, s3, s4, s5, s6, s7
                if stay:
                    break
            leaves[t, i], leaves[t, i1], leaves[t, i2], leaves[t, i3] = n0, n1, n2, n3
            leaves[t, i4], leaves[t, i5], leaves[t, i6], leaves[t, i7] = n4, n5, n6, n7
    for i in range(count):
        total, square = 0.0, 0.0
        for t in range(trees):
            total += means[t, leaves[t, i]]
        mu[i] = total / trees
        for t in range(trees):
            square += (means[t, leaves[t, i]] - mu[i]) ** 2
        sd[i] = np.sqrt(square / trees)
