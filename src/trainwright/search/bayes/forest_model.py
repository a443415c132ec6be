"""The random forest surrogate, kept between calls: a pure function of settings and of the observed rows in order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.randomness import rng
from trainwright.search.bayes import trees as tree_kernels
from trainwright.search.bayes.dominance import Dominance, dominated_shares
from trainwright.search.bayes.loop import add_penalties, draw_weights
from trainwright.search.bayes.loss_scale import LossScale, RungScale, scale_size
from trainwright.search.view import SearchView
from trainwright.space import Space

__all__ = ["Forest", "Trees"]


_STEP = 1.1  # tree t is planted afresh at the sizes floor(1.1^(k + t/T))
_SCALES = 1.02  # and targets are scaled afresh at the sizes floor(1.02^k); what comes between is placed among them
_ROOM = 64  # rows at first
_MOST_CODES = 64  # of a choice whose tests are subsets


class Trees:
    """Regression trees over [model columns of the space, z], as the arrays of the kernels; see `trees`."""

    def __init__(self, space: Space, seed: int, count: int, *, least_rows: int = 2) -> None:
        columns = space.columns
        # A choice has a code more, for inactive; one of too many codes for a mask is cut by their order.
        codes = [(c.points or 0) + 1 if c.kind == "choice" else 0 for c in columns]
        self._codes = np.array([*(count if count <= _MOST_CODES else 0 for count in codes), 0], np.int64)
        self._key = rng(seed, "forest", 0).integers(2**64, dtype=np.uint64)
        self._least_rows = least_rows  # of a node that is split
        self.count = count
        self.leaf_of = np.zeros((count, _ROOM), np.int32)  # of each row in each tree, -1 for rows not in it
        self._chain = np.zeros((count, _ROOM), np.int32)
        self._heads = np.zeros((count, 2 * _ROOM), np.int32)
        self._sizes = np.ones(count, np.int64)  # nodes of each tree
        self._bits = np.zeros((count, 2 * _ROOM, 2), np.uint64)
        self._means = np.zeros((count, 2 * _ROOM))

    def reserve(self, more: int) -> None:
        """Make room for so many rows more, and twice as many nodes."""
        self.leaf_of, self._chain = _widen(self.leaf_of, 1, more), _widen(self._chain, 1, more)
        self._heads, self._bits = _widen(self._heads, 1, 2 * more), _widen(self._bits, 1, 2 * more)
        self._means = _widen(self._means, 1, 2 * more)

    def grow(self, M: Array, y: Array, first: int, stop: int, born: NDArray[np.int64]) -> None:
        """Give rows first to stop - 1 to the trees; tree t is planted when born[t] rows are there."""
        tree_kernels.grow(
            M, y, first, stop, born, self._key, self._codes, self._least_rows, self._bits.view(np.float64),
            self._bits, self.leaf_of, self._heads, self._chain, self._sizes,
        )  # fmt: skip

    def average(self, y: Array) -> None:
        """Give each leaf the mean target of its rows."""
        tree_kernels.leaf_means(y, self.leaf_of, self._sizes, self._means)

    def predict(self, M: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation over the trees at model rows [rows, columns + 1]."""
        leaves = np.empty((self.count, len(M)), np.int32)
        mu, sd = np.empty(len(M)), np.empty(len(M))
        tree_kernels.predict(M, self._bits.view(np.float64), self._bits, self._means, leaves, mu, sd)
        return mu, sd


class Forest:
    """Fits a surrogate of trees: new rows extend them by `update`, and each tree is planted anew now and then.

    `recalled` [objectives, rows] are the targets of the view's first rows, if these are another study's. A tree is
    planted from at most `max_rows` rows.
    """

    def __init__(self, view: SearchView, tree_count: int, max_rows: int, recalled: Array | None = None) -> None:
        self._max_rows = max_rows
        self._dominance = None
        if view.objectives > 1:
            self._dominance = Dominance(view.objectives, view.bounds)
            recalled = None if recalled is None else dominated_shares(recalled.T)[None, :]
        bounds = view.bounds if self._dominance is None else np.full(1, np.inf)  # of what `_losses` holds
        self._recalled = np.zeros((1, 0)) if recalled is None else recalled
        self.count = 0  # rows taken
        self._seed = view.seed
        self._revision = view.revision
        self._leveled = scale_size(view)  # rows by which the rungs are laid over each other
        self._level = RungScale.of(view, self._leveled) if self._leveled else None
        self._finite = 0
        self._scaled = 0  # rows whose targets are on the scale of the moment
        self._objectives = view.objectives

        outcomes = len(bounds)
        self._M = np.zeros((_ROOM, view.space.dimension + 1))
        self._losses = np.zeros((_ROOM, outcomes))  # or one column: how many rows dominate each
        self._failed = np.zeros(_ROOM, np.bool_)
        self._order = np.zeros((outcomes, _ROOM), np.int32)  # finite rows by loss
        self._targets = np.zeros((outcomes, _ROOM))  # on the scale of all rows
        self._bounds = bounds
        self._scales: list[LossScale] = []  # of all rows
        self._growth_scales: list[LossScale] = []  # on which the trees grow
        self._growth_targets = np.zeros((outcomes, _ROOM))  # on the scale that held when each row came
        self._plain = not np.isfinite(bounds).any()
        self._born = np.zeros(tree_count, np.int64)  # rows from which each tree was planted
        self._due = np.zeros(tree_count, np.int64)  # rows from which it will be planted next
        self.trees = Trees(view.space, view.seed, tree_count)

    def outdated(self, view: SearchView) -> bool:
        """Return whether an old row has changed, or what it is worth, so that only a new forest will do."""
        if view.revision != self._revision or scale_size(view) != self._leveled:
            return True
        return view.partial and not np.array_equal(self._M[: self.count, -1], view.progress[: self.count])

    def update(self, view: SearchView) -> None:
        """Add the rows observed since the last call."""
        start, count = self.count, view.count
        if start == count:
            return
        self._reserve(count)
        self._M[start:count, :-1] = view.space.model_matrix(view.rows[start:])
        self._M[start:count, -1] = view.progress[start:]
        self._failed[start:count] = view.failed[start:]
        outcomes = view.outcomes[start:]
        if self._level is not None:
            outcomes = self._level(outcomes, view.rungs[start:])
        if self._dominance is None:
            self._losses[start:count] = outcomes
        else:
            self._dominance.take(outcomes, view.failed[start:], start)
        self.trees.leaf_of[:, start:count] = -1
        # Trees whose turn it is are planted anew from all rows; the others are extended by the new rows.
        born = self._born.copy()
        for t in np.flatnonzero(self._due <= count):
            born[t], self._due[t] = self._sizes_around(int(t), count)
            self._choose_rows(int(t), int(born[t]))
        first = _scaled_sizes(int(born.min()))[0] - 1  # before this all trees of the moment are planted anew
        if start < first:
            self._rank(start, first)
            start = first
        while start < count:
            # Between two scales new rows are placed among the old ones, so that old targets need not change.
            size, later = _scaled_sizes(start + 1)
            stop, new = min(count, later - 1), start
            if size == start + 1:
                self._rank(start, size)
                # The scale of the first `size` rows is kept for the growth of the next.
                self._scale(size)
                self._growth_scales = self._scales
                self._growth_targets[:, :size] = self._targets[:, :size]
                new = size
            self._place(new, stop, size)
            self._rank(new, stop)
            y = self._penalise(self._growth_targets, self._growth_scales, stop, basis=size)
            self.trees.grow(self._M, y, start, stop, born)
            start = stop
        self._born = born
        self.count = count

    def _rank(self, start: int, stop: int) -> None:
        """Take rows into the order of the losses."""
        if self._dominance is not None:
            self._dominance.enter(start, stop, self._losses[:, 0])
            finite = np.flatnonzero(~self._failed[:stop])
            self._finite = len(finite)
            self._order[0, : len(finite)] = finite[np.argsort(self._losses[finite, 0], kind="stable")]
            return
        rows = start + np.flatnonzero(~self._failed[start:stop])
        if not len(rows):
            return
        known, self._finite = self._finite, self._finite + len(rows)
        for j, losses in enumerate(self._losses[rows].T):
            old, by_loss = self._order[j, :known], np.argsort(losses, kind="stable")
            places = np.searchsorted(self._losses[old, j], losses[by_loss], side="right")
            self._order[j, : self._finite] = np.insert(old, places, rows[by_loss])

    def _place(self, start: int, stop: int, size: int) -> None:
        """Place rows among the first `size`, on whose scale the trees grow."""
        if self._dominance is not None:
            self._dominance.count(size, start, stop, self._losses[:, 0])
        for j, scale in enumerate(self._growth_scales):
            self._growth_targets[j, start:stop] = scale.place(self._losses[start:stop, j], self._failed[start:stop])
        self._recall(self._growth_targets)

    def _recall(self, targets: Array) -> None:
        """Give the rows of an earlier study the ranks of that study; they are taken to keep its constraints."""
        objectives, rows = self._recalled.shape
        if rows:
            targets[:, :rows] = 0.0
            targets[:objectives, :rows] = self._recalled

    def value(self) -> Array:
        """Give each leaf the mean target of its rows; return all rows' targets."""
        if self._scaled != self.count:
            self._scale(self.count)
        y = self._penalise(self._targets, self._scales, self.count, basis=self.count)
        self.trees.average(y)
        return y

    def _scale(self, count: int) -> None:
        """Scale the first `count` rows, which are those in order."""
        self._scaled = count
        orders = self._order[:, : self._finite]
        self._scales = [LossScale.of(self._losses[order, j], self._bounds[j]) for j, order in enumerate(orders)]
        for targets, order, scale in zip(self._targets, orders, self._scales, strict=True):
            targets[:count] = scale.bad
            targets[order] = scale.targets
        self._recall(self._targets)

    def _penalise(self, targets: Array, scales: Sequence[LossScale], count: int, *, basis: int) -> Array:
        """Return the first `count` rows' targets with a penalty for broken bounds.

        What the failed ones among them get is decided by the first `basis`.
        """
        if self._plain:
            return np.asarray(targets[0, :count])
        y: Array = add_penalties(targets[:, :count], 1, np.array([scale.limit for scale in scales]))[0]
        failed = self._failed[:count].copy()
        failed[: self._recalled.shape[1]] = False
        # Set after the penalties: a failed trial is as bad as the worst sum, not as the sum of the worst.
        if failed.any() and not failed[:basis].all():
            y[failed] = y[:basis][~failed[:basis]].max()
        return y

    def _sizes_around(self, t: int, count: int) -> tuple[int, int]:
        """Return the sizes at which tree `t` is planted: the last one up to `count`, and the next."""
        share, due = t / self.trees.count, count + 1
        k = int(np.log(count) / np.log(_STEP) - share) + 2
        while (size := max(1, int(_STEP ** (k + share)))) > count:
            k, due = k - 1, size
        return size, due

    def _choose_rows(self, t: int, size: int) -> None:
        """Mark with leaf 0 the rows from which to plant tree `t`: the first `size`, or the most telling of them."""
        most, losses = self._max_rows, self._losses if self._dominance is None else self._dominance.rows
        members = np.ones(size, np.bool_)
        if size > most:
            mix = np.ones(1)
            if self._objectives > 1:
                mix = draw_weights(rng(self._seed, "tree-weights", size, t), self._objectives)
            # A crowded tree keeps the best rows, the newest ones, and a random sample of the rest.
            appeal = rng(self._seed, "rows", t).random(size)  # for those of no distinction: by chance
            ranks = np.argsort(np.argsort(losses[:size, : len(mix)], axis=0, kind="stable"), axis=0)
            appeal[np.argsort(ranks @ mix, kind="stable")[: most // 5]] = 2.0
            appeal[size - most // 5 :] = 2.0
            members[np.argsort(-appeal, kind="stable")[most:]] = False
        self.trees.leaf_of[t, :size] = np.where(members, 0, -1)

    def _reserve(self, count: int) -> None:
        """Make room for `count` rows."""
        if count <= len(self._M):
            return
        more = max(count, 2 * len(self._M)) - len(self._M)
        for name in ("_M", "_losses", "_failed"):
            setattr(self, name, _widen(getattr(self, name), 0, more))
        for name in ("_order", "_targets", "_growth_targets"):
            setattr(self, name, _widen(getattr(self, name), 1, more))
        self.trees.reserve(more)


def _scaled_sizes(size: int) -> tuple[int, int]:
    """Return at how many rows the scale was set by which the last of `size` rows grows, and when it is set next."""
    later = size + 1
    k = int(np.log(size) / np.log(_SCALES)) + 2
    while (found := max(1, int(_SCALES**k))) > size:
        k, later = k - 1, found
    return found, later


def _widen(old: NDArray[Any], axis: int, more: int) -> NDArray[Any]:
    shape = list(old.shape)
    shape[axis] = more
    return np.concatenate([old, np.zeros(shape, old.dtype)], axis=axis)
