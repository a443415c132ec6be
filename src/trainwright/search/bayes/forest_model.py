"""A forest kept between calls: a pure function of its settings and of the told rows in their order."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainwright.randomness import rng
from trainwright.search.bayes.rung_scale import RungScale, scale_size
from trainwright.search.bayes.scalarisation import SCALARISATIONS, penalised, simplex
from trainwright.search.view import SearchView

__all__ = ["Failures", "Forest", "Growth", "Refit", "Scaler", "Target", "simplex"]

Array = NDArray[np.float64]
Refit = Literal["grow", "always"]
Scaler = Literal["quantile-uniform", "identity"]
Failures = Literal["worst", "ignore"]
Target = Literal["dominance", "linear", "chebyshev", "augmented", "pbi", "quadratic"]  # of several objectives

_STEP = 1.1  # "grow" plants tree t afresh at the sizes floor(1.1^(k + t/T))
_SCALES = 1.02  # and scales the targets afresh at the sizes floor(1.02^k); what comes between is placed among them


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """How a forest grows: as ForestSearcher needs it by default, otherwise as `Estimate` does."""

    trees: int
    scalarisation: Target
    weights: tuple[float, ...] | None
    max_rows: int
    refit: Refit = "grow"  # rows extend trees, and each tree is replanted once per 10 % more rows; always: all of them
    scaler: Scaler = "quantile-uniform"  # of losses clipped at Q3 + 1.5 IQR
    failures: Failures = "worst"  # the target of a failed trial
    least_rows: int = 2  # of a node that is split
    leveled: bool = False  # rungs are laid over each other; else losses of all epochs stay on the scale that they have


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """What losses are worth, as of some first rows."""

    limits: Array
    bads: Array
    losses: Array  # [outcomes, finite], in order
    targets: Array  # of these


class Forest:
    """Regression trees over [model columns of the space, z]; `update` takes what was told since.

    `recalled` [objectives, rows] are the targets of the view's first rows, if these are another study's.
    """

    def __init__(self, growth: Growth, view: SearchView, recalled: Array | None = None) -> None:
        self.growth = growth
        self._dominance = None
        if view.objectives > 1 and growth.scalarisation == "dominance":
            from trainwright.search.bayes.dominance import Dominance, dominated_shares

            self._dominance = Dominance(view.objectives, view.bounds)
            recalled = None if recalled is None else dominated_shares(recalled.T)[None, :]
        objectives = 1 if self._dominance is not None else view.objectives
        bounds = view.bounds if self._dominance is None else np.full(1, np.inf)  # of what `_losses` holds
        self._recalled = np.zeros((objectives, 0)) if recalled is None else recalled
        self.count = 0  # rows taken
        columns = view.space.columns
        self._codes = np.array([*((c.points or 0) + 1 if c.kind == "choice" else 0 for c in columns), 0], np.int64)
        d = len(self._codes)
        self._key = rng(view.seed, "forest", 0).integers(2**64, dtype=np.uint64)
        self._seed = view.seed
        self._revision = view.revision
        self._leveled = scale_size(view) if growth.leveled else 0  # rows by which the rungs are laid over each other
        self._level = RungScale.of(view, self._leveled) if self._leveled else None
        self._finite = 0
        self._scaled = 0  # rows whose targets are on the scale of the moment
        self._objectives = view.objectives

        trees, outcomes, room = growth.trees, len(bounds), 64
        self._M = np.zeros((room, d))
        self._losses = np.zeros((room, outcomes))  # or one column: how many rows dominate each
        self._failed = np.zeros(room, np.bool_)
        self._order = np.zeros((outcomes, room), np.int32)  # finite rows by loss
        self._targets = np.zeros((outcomes, room))  # on the scale of all rows
        self._bounds, self._limits = bounds, np.full(outcomes, np.inf)  # of losses, of targets
        self._bads = np.full(outcomes, 0.5)
        nothing = np.zeros((outcomes, 0))
        self._scale_of_growth = _Scale(limits=self._limits, bads=self._bads, losses=nothing, targets=nothing)
        self._growth_targets = np.zeros((outcomes, room))  # on the scale that held when each row came
        self._plain = objectives == 1 and not np.isfinite(bounds).any()
        self._y = np.zeros(0)  # what the leaves are valued by
        self._born = np.zeros(trees, np.int64)  # rows from which each tree was planted
        self._due = np.zeros(trees, np.int64)  # rows from which it will be planted next
        self._mix = np.full((trees, objectives), 1.0 / objectives)
        self._w = np.zeros((trees, room))  # of each row in each tree
        self._leaf_of = np.zeros((trees, room), np.int32)
        self._heads = np.zeros((trees, 2 * room), np.int32)
        self._chain = np.zeros((trees, room), np.int32)
        self._sizes = np.ones(trees, np.int64)  # nodes of each tree
        self._bits = np.zeros((trees, 2 * room, 2), np.uint64)
        words = -(-int(self._codes.max()) // 64)
        self._masks = np.zeros((trees, 2 * room if words > 1 else 1, max(1, words)), np.uint64)
        self._means = np.zeros((trees, 2 * room))

    def outdated(self, view: SearchView) -> bool:
        """Return whether an old row has changed, or what it is worth, so that only a new forest will do."""
        if view.revision != self._revision or (self.growth.leveled and scale_size(view) != self._leveled):
            return True
        return view.partial and not np.array_equal(self._M[: self.count, -1], view.progress[: self.count])

    def update(self, view: SearchView) -> None:
        """Take the rows told since the last call."""
        from trainwright.search.bayes import trees as tree_kernels

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
        self._leaf_of[:, start:count] = -1
        self._weigh(start, count)
        # Trees whose turn it is are planted anew from all rows; the others are extended by the new rows.
        born = self._born.copy()
        for t in np.flatnonzero(self._due <= count):
            born[t], self._due[t] = self._sizes_around(int(t), count)
            self._choose(int(t), int(born[t]))
        first = self._scaled_at(int(born.min()))[0] - 1  # before this all trees of the moment are planted anew
        if start < first:
            self._rank(start, first)
            start = first
        cuts = self._bits.view(np.float64)
        while start < count:
            # Between two scales new rows are placed among the old ones, so that old targets need not change.
            size, later = self._scaled_at(start + 1)
            stop, new = min(count, later - 1), start
            if size == start + 1:
                self._rank(start, size)
                self._set_scale(size)
                new = size
            self._place(new, stop, size)
            self._rank(new, stop)
            scale = self._scale_of_growth
            tree_kernels.grow(
                self._M, self._scalars(self._growth_targets, scale.limits, self._mix, stop, basis=size), start, stop,
                born, self._w, self._key, self._codes, self.growth.least_rows,
                cuts, self._bits, self._masks, self._leaf_of, self._heads, self._chain, self._sizes,
            )  # fmt: skip
            start = stop
        self._born = born
        self.count = count

    def _scaled_at(self, size: int) -> tuple[int, int]:
        """Return at how many rows the scale was set by which the last of `size` rows grows, and when it is set next."""
        later = size + 1
        if self.growth.refit == "always":
            return size, later
        k = int(np.log(size) / np.log(_SCALES)) + 2
        while (found := max(1, int(_SCALES**k))) > size:
            k, later = k - 1, found
        return found, later

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

    def _set_scale(self, size: int) -> None:
        """Scale the first `size` rows, which are those in order, and keep the scale for the growth of the next."""
        self._scale(size)
        order = self._order[:, : self._finite]
        self._growth_targets[:, :size] = self._targets[:, :size]
        self._scale_of_growth = _Scale(
            limits=self._limits.copy(),
            bads=self._bads.copy(),
            losses=np.take_along_axis(self._losses.T, order, axis=1),
            targets=np.take_along_axis(self._targets, order, axis=1),
        )

    def _place(self, start: int, stop: int, size: int) -> None:
        """Place rows among the first `size`, on whose scale the trees grow."""
        from trainwright.search.bayes import targets as target_kernels

        scale = self._scale_of_growth
        if self._dominance is not None:
            self._dominance.count(size, start, stop, self._losses[:, 0])
        target_kernels.place(
            self._losses, self._failed, scale.losses, scale.targets, scale.bads, start, stop, self._growth_targets
        )
        self._recall(self._growth_targets)

    def _recall(self, targets: Array) -> None:
        """Give the rows of an earlier study the ranks of that study; they are taken to keep its constraints."""
        objectives, rows = self._recalled.shape
        if rows:
            targets[:, :rows] = 0.0
            targets[:objectives, :rows] = self._recalled

    def value(self, weights: Array) -> Array:
        """Give each leaf the mean target of its rows, objectives weighted by `weights`; return all rows' targets."""
        from trainwright.search.bayes import trees as tree_kernels

        if self._scaled != self.count:
            self._scale(self.count)
        self._y = self._scalars(self._targets, self._limits, weights[None, :], self.count, basis=self.count)[0]
        tree_kernels.leaf_means(self._y, self._leaf_of, self._w, self._sizes, self._means)
        return self._y

    def predict(self, M: Array) -> tuple[Array, Array, NDArray[np.int32]]:
        """Return mean, epistemic standard deviation and leaves [trees, rows] of model rows [rows, columns + 1]."""
        from trainwright.search.bayes import trees as tree_kernels

        leaves = np.empty((self.growth.trees, len(M)), np.int32)
        mu, sd = np.empty(len(M)), np.empty(len(M))
        tree_kernels.predict(M, self._bits.view(np.float64), self._bits, self._masks, self._means, leaves, mu, sd)
        return mu, sd, leaves

    def _scale(self, count: int) -> None:
        from trainwright.search.bayes import targets as target_kernels

        self._scaled = count
        scaler = target_kernels.SCALERS.index(self.growth.scaler)
        target_kernels.scale(
            self._losses, self._failed, scaler, self._order, self._finite, count, self._targets,
            self._bounds, self._limits, self._bads,
        )  # fmt: skip
        self._recall(self._targets)

    def _scalars(self, targets: Array, limits: Array, weights: Array, count: int, *, basis: int) -> Array:
        """Return the first `count` rows' targets under each row of weights; [1, count] where weights play no part.

        What the failed ones among them get is decided by the first `basis`.
        """
        if self._plain:
            return targets[:1, :count]
        Y = penalised(targets[:, :count], weights.shape[1], limits)
        form = self.growth.scalarisation
        y = Y if len(Y) == 1 or form == "dominance" else SCALARISATIONS[form](Y, weights)
        failed = self._failed[:count].copy()
        failed[: self._recalled.shape[1]] = False
        if failed.any() and not failed[:basis].all():  # as the worst of all in this scalar, not in each objective
            # The targets of failed trials are set after scalarisation: the worst of the sums, not the sum of the worst.
            finite = y[:, :basis][:, ~failed[:basis]]
            y[:, failed] = finite.max(axis=1)[:, None]
        return y

    def _sizes_around(self, t: int, count: int) -> tuple[int, int]:
        """Return the sizes at which tree `t` is planted: the last one up to `count`, and the next."""
        if self.growth.refit == "always":
            return count, count + 1
        share, due = t / self.growth.trees, count + 1
        k = int(np.log(count) / np.log(_STEP) - share) + 2
        while (size := max(1, int(_STEP ** (k + share)))) > count:
            k, due = k - 1, size
        return size, due

    def _choose(self, t: int, size: int) -> None:
        """Mark with leaf 0 the rows from which to plant tree `t`: the first `size`, or the most telling of them."""
        most, losses = self.growth.max_rows, self._losses if self._dominance is None else self._dominance.rows
        mix = np.ones(1)
        if self.growth.weights is not None:
            mix = np.array(self.growth.weights)
        elif self._objectives > 1:
            mix = simplex(rng(self._seed, "tree-weights", size, t), self._objectives)
        if self._mix.shape[1] > 1:
            self._mix[t] = mix
        members = self._w[t, :size] > 0.0
        if size > most:
            # A crowded tree keeps the best rows, the newest ones, and a random sample of the rest.
            appeal = rng(self._seed, "rows", t).random(size)  # for those of no distinction: by chance
            ranks = np.argsort(np.argsort(losses[:size, : len(mix)], axis=0, kind="stable"), axis=0)
            appeal[np.argsort(ranks @ mix, kind="stable")[: most // 5]] = 2.0
            appeal[size - most // 5 :] = 2.0
            members[np.argsort(-appeal, kind="stable")[most:]] = False
        self._leaf_of[t, :size] = np.where(members, 0, -1)

    def _weigh(self, start: int, count: int) -> None:
        """Weigh the new rows in each tree: 1, or 0 if they failed and failures are ignored."""
        self._w[:, start:count] = 1.0
        if self.growth.failures == "ignore":
            old = self._recalled.shape[1]
            self._w[:, max(start, old) : count][:, self._failed[max(start, old) : count]] = 0.0

    def _reserve(self, count: int) -> None:
        """Make room for `count` rows, and twice as many nodes."""
        if count <= len(self._M):
            return
        more = max(count, 2 * len(self._M)) - len(self._M)
        for name in ("_M", "_losses", "_failed"):
            setattr(self, name, _widen(getattr(self, name), 0, more))
        for name in ("_order", "_targets", "_growth_targets", "_w", "_leaf_of", "_chain"):
            setattr(self, name, _widen(getattr(self, name), 1, more))
        for name in ("_bits", "_means", "_heads", "_masks")[: 3 if self._masks.shape[2] == 1 else 4]:
            setattr(self, name, _widen(getattr(self, name), 1, 2 * more))


def _widen(old: NDArray[Any], axis: int, more: int) -> NDArray[Any]:
    shape = list(old.shape)
    shape[axis] = more
    return np.concatenate([old, np.zeros(shape, old.dtype)], axis=axis)
