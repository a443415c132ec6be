"""The compiled trees against a plain Python reference, brute force and the laws that predictions must obey."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainwright.search.bayes import trees as compiled
from trainwright.search.bayes.loss_scale import LossScale

WORDS = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORDS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORDS
    return x ^ (x >> 31)


def draw(key, column, index):
    return mix((mix((key + GOLDEN * (column + 1)) & WORDS) + GOLDEN * (index + 1)) & WORDS)


def uniform(key, column, index):
    return (draw(key, column, index) >> 11) * 2.0**-53


class Reference:
    """The extra-trees rule written down once more, recursively, with Python numbers and lists."""

    def __init__(self, M, y, codes, key):
        self.M, self.y, self.codes = M, y, codes
        self.tree = self.grow(list(range(len(y))), key)

    def grow(self, rows, key):
        y = [self.y[i] for i in rows]
        leaf = ("leaf", rows)
        if len(rows) < 2 or min(y) == max(y):
            return leaf
        best, top = None, -1.0
        for c in range(self.M.shape[1]):
            values = [self.M[i, c] for i in rows]
            if min(values) == max(values):
                continue
            test = self.test(values, key, c)
            sent = [i for i in rows if not test(self.M[i, c])]
            left, all_ = self.sums(sent, c), (float(len(rows)), self.sum(y))
            gain = left[1] ** 2 / left[0] + (all_[1] - left[1]) ** 2 / (all_[0] - left[0])
            if gain > top:
                best, top = (c, test), gain
        if best is None:
            return leaf
        c, test = best
        left = [i for i in rows if not test(self.M[i, c])]
        right = [i for i in rows if test(self.M[i, c])]
        return "split", self.grow(left, draw(key, 1 << 30, 0)), self.grow(right, draw(key, 1 << 30, 1))

    def test(self, values, key, c):
        """The test that sends a value right."""
        if not self.codes[c]:
            low, high = min(values), max(values)
            cut = low + uniform(key, c, 0) * (high - low)
            cut = low if cut >= high else cut
            return lambda value: value > cut
        present = sorted({int(value) for value in values})
        for attempt in range(16):
            mask = draw(key, c, attempt)
            if len({mask >> code & 1 for code in present}) == 2:
                break
        else:
            mask = 1 << present[0]
        return lambda value: mask >> int(value) & 1 == 1

    def sums(self, rows, c):
        if not self.codes[c]:
            return float(len(rows)), self.sum(self.y[i] for i in rows)
        total = 0.0
        for code in range(self.codes[c]):  # the kernel adds up by code first
            total += self.sum(self.y[i] for i in rows if self.M[i, c] == code)
        return float(len(rows)), total

    def sum(self, values):
        total = 0.0
        for value in values:
            total += value
        return total

    def leaves(self):
        def walk(node):
            return [node[1]] if node[0] == "leaf" else walk(node[1]) + walk(node[2])

        return sorted(walk(self.tree))


class Grown:
    """Trees grown by the kernels from model rows and losses, for tests."""

    def __init__(self, M, losses, codes, *, trees=1, born=None, key=12345):
        count, d = M.shape
        room = count + 1
        self.M = np.vstack([M, np.zeros((1, d))]).astype(float)
        self.losses = np.append(np.asarray(losses, float), 0.0)[:, None]
        self.failed = ~np.isfinite(self.losses[:, 0])
        self.count = count
        self.order = np.zeros((1, room), np.int32)
        self.targets = np.zeros((1, room))
        self.bound, self.limit = np.inf, np.inf
        self.leaf_of = np.zeros((trees, room), np.int32)
        self.heads, self.chain = np.zeros((trees, 2 * room), np.int32), np.zeros((trees, room), np.int32)
        self.sizes = np.ones(trees, np.int64)
        self.bits = np.zeros((trees, 2 * room, 2), np.uint64)
        self.means = np.zeros((trees, 2 * room))
        self.key = np.uint64(key)
        born = np.full(trees, count if born is None else born, np.int64)
        for t in range(trees):
            self.leaf_of[t, born[t] :] = -1
        self.born, self.codes = born, np.array(codes, np.int64)
        self.finite = 0
        self.extend(0, count)

    def extend(self, start, stop):
        for row in range(start, stop):
            finite = np.flatnonzero(~self.failed[: row + 1])
            self.finite = len(finite)
            self.order[0, : self.finite] = finite[np.argsort(self.losses[finite, 0], kind="stable")]
            self.scale(row + 1)
            compiled.grow(
                self.M, self.targets[0], row, row + 1, self.born, self.key,
                self.codes, 2, self.bits.view(np.float64), self.bits, self.leaf_of,
                self.heads, self.chain, self.sizes,
            )  # fmt: skip
        compiled.leaf_means(self.targets[0, :stop], self.leaf_of, self.sizes, self.means)

    def scale(self, count):
        order = self.order[0, : self.finite]
        scale = LossScale.of(self.losses[order, 0], self.bound)
        self.targets[0, :count], self.limit = scale.bad, scale.limit
        self.targets[0, order] = scale.targets

    @property
    def y(self):
        return self.targets[0, : self.count]

    def root_key(self, t, stamp):
        return draw(draw(int(self.key), 1 << 31, t), 1 << 31, stamp)

    def predict(self, M):
        M = np.ascontiguousarray(M, float)
        leaves = np.empty((len(self.sizes), len(M)), np.int32)
        mu, sd = np.empty(len(M)), np.empty(len(M))
        compiled.predict(M, self.bits.view(np.float64), self.bits, self.means, leaves, mu, sd)
        return mu, sd, leaves

    def partition(self, t=0):
        groups = {}
        for i, leaf in enumerate(self.leaf_of[t, : self.count]):
            groups.setdefault(leaf, []).append(i)
        return sorted(groups.values())


def table(generator, count, *, units=3, choice=0, ties=False):
    M = generator.random((count, units))
    if ties:
        M = np.round(M * 3) / 3
    if choice:
        M = np.column_stack([M, generator.integers(choice, size=count)])
    losses = generator.random(count) if not ties else generator.integers(4, size=count).astype(float)
    return M, losses, [0] * units + ([choice] if choice else [])


@pytest.mark.parametrize("seed", range(6))
def test_same_trees_as_the_reference(seed):
    """A tree parts the rows exactly as the plain rule does, ties and choices included."""
    generator = np.random.default_rng(seed)
    M, losses, codes = table(generator, int(generator.integers(2, 80)), choice=5 * (seed % 2), ties=seed % 3 == 0)
    grown = Grown(M, losses, codes)
    reference = Reference(M, grown.y, codes, grown.root_key(0, len(M)))
    assert grown.partition() == reference.leaves()


def test_a_single_tree_without_threshold_predicts_distinct_rows_exactly():
    M, losses, codes = table(np.random.default_rng(0), 200, choice=4)
    grown = Grown(M, losses, codes)
    assert np.array_equal(grown.predict(M)[0], grown.y)


@pytest.mark.parametrize("codes", [1, 5, 62, 63])
def test_choices_of_any_size(codes):
    """Rows that differ by their code alone are told apart; a choice has one code more, for inactive."""
    generator = np.random.default_rng(codes)
    M = generator.permutation(codes).astype(float)[:, None]
    grown = Grown(M, generator.random(codes), [codes + 1])
    assert np.array_equal(grown.predict(M)[0], grown.y)


def test_walks_agree_with_the_leaves_noted_while_growing():
    """`predict` sends every row to the leaf that holds it, after planting and after every extension."""
    M, losses, codes = table(np.random.default_rng(1), 150, choice=7)
    grown = Grown(M, losses, codes, trees=4, born=60)
    assert np.array_equal(grown.predict(M)[2], grown.leaf_of[:, : grown.count])
    assert len({grown.bits[t].tobytes() for t in range(4)}) == 4  # trees differ


def test_deviation_is_that_of_the_trees():
    """Mean and deviation over trees are those of the leaf means, and the variances add up to the mixture's."""
    M, losses, codes = table(np.random.default_rng(3), 120, choice=3)
    grown = Grown(M, losses, codes, trees=10)
    asked = table(np.random.default_rng(4), 50, choice=3)[0]
    mu, sd, leaves = grown.predict(asked)
    for k in range(50):
        members = [np.flatnonzero(grown.leaf_of[t, :120] == leaves[t, k]) for t in range(10)]
        means = np.array([grown.y[rows].mean() for rows in members])
        within = np.mean([grown.y[rows].var() for rows in members])
        assert mu[k] == pytest.approx(means.mean(), abs=1e-12)
        assert sd[k] ** 2 == pytest.approx(means.var(), abs=1e-12)
        weights = np.concatenate([np.full(len(rows), 0.1 / len(rows)) for rows in members])
        values = np.concatenate([grown.y[rows] for rows in members])
        mixture = np.sum(weights * values**2) - np.sum(weights * values) ** 2
        assert within + sd[k] ** 2 == pytest.approx(mixture, abs=1e-12)


def plain_targets(losses):
    finite = np.sort(losses[np.isfinite(losses)])
    if not len(finite):
        return np.full(len(losses), 0.5)
    q1, q3 = np.quantile(finite, [0.25, 0.75])
    clipped = np.minimum(losses, q3 + 1.5 * (q3 - q1)) if q1 < q3 else losses
    known = clipped[np.isfinite(losses)]
    targets = np.empty(len(losses))
    # Mean rank, from 1.
    targets[np.isfinite(losses)] = [((known < v).sum() + (known <= v).sum()) / 2 / len(known) for v in known]
    good = targets[np.isfinite(losses)]
    targets[~np.isfinite(losses)] = good.max()
    return targets


@given(st.lists(st.one_of(st.floats(-100, 100), st.sampled_from([0.0, 1.0, math.inf])), min_size=1, max_size=30))
@settings(max_examples=200)
def test_scaling_equals_its_formula(losses):
    """Targets are clipped mean ranks, incrementally as from scratch."""
    losses = np.array(losses)
    grown = Grown(np.zeros((len(losses), 1)), losses, [0])
    grown.scale(len(losses))
    assert grown.y == pytest.approx(plain_targets(losses), abs=1e-9)


def test_scaling_of_huge_losses_stays_finite():
    losses = np.array([1e300, -1e300, 1.7e308, -1.7e308, 0.0, np.inf])
    grown = Grown(np.zeros((6, 1)), losses, [0])
    grown.scale(6)
    assert np.all(np.isfinite(grown.y))
    assert np.all(np.isfinite(grown.y**2 * 6))
    assert np.argmin(grown.y) == 3
    assert np.all((grown.y >= 0) & (grown.y <= 1))


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(-120, 120))
@example([0.0, 0.0, 0.0, 2.0, 1e-74], 1.0)
@settings(max_examples=200)
def test_the_limit_parts_targets_as_the_bound_parts_losses(losses, bound):
    """A loss within the bound has a target within the limit, and one beyond it none below."""
    grown = Grown(np.zeros((len(losses), 1)), np.array(losses), [0])
    grown.bound = bound
    grown.scale(len(losses))
    kept = np.array(losses) <= bound
    assert np.all(grown.y[kept] <= grown.limit + 1e-9)
    assert np.all(grown.y[~kept] >= grown.limit - 1e-9)
