"""What selection works on: the kept predictions of all members on one split, and the losses of sums of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trainwright.ensemble.library.member import Member
from trainwright.ensemble.library.predictions import normalise_rows
from trainwright.ensemble.metrics import SMALLEST, Array, Metric

__all__ = ["Candidates", "Picks", "RowScorer", "Scorer", "TrueClassScorer", "make_scorer", "prior_loss"]

Indices = npt.NDArray[np.intp]
Picks = tuple[int, ...]  # indices of candidates in the order of picking; repeats count

_TERMS = 32  # of a product, of which one logarithm is taken
_BLOCK_BYTES = 1 << 18  # temporaries that stay in a core's cache


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Columns over L members for one split of N rows; the order of members plays no part, trial numbers break ties."""

    trials: Array  # [L]
    members: tuple[Member, ...] = ()  # [L], from which an ensemble is made
    targets: Array  # classes [N], or values [N, C]
    true: Array | None = None  # probability of the true class [L, N], float32; all that cross-entropy needs
    read: Callable[[int], Array] | None = None  # a member's predictions [N, ...] as kept; None if `true` is enough
    seconds: Array | None = None  # per row [L]; None if not measured
    sizes: Array | None = None  # weight bytes [L]; None if unknown
    chosen: Array | None = None  # which rows of the predictions the targets are of; None for all, in order

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one member's predictions on the rows of this selection."""
        return (len(self.targets), *self.read_member(0).shape[1:])

    def read_member(self, index: int) -> Array:
        """Return one member's predictions as kept."""
        if self.read is None:
            raise ValueError("these candidates have the probability of the true class alone")
        return self.read(index)

    def rows(self, index: int) -> Array:
        """Return one member's terms: what is summed over members, in float64; see `terms`."""
        return self.terms(self.read_member(index), 0, len(self.targets))

    def terms(self, stored: Array, start: int, stop: int) -> Array:
        """Return rows of a member's kept predictions as terms of a sum, of which `combined` makes predictions again.

        Class probabilities that sum to 1, values as they are; of means and variances [N, T, 2] the distance from the
        target and its second moment, so that sums of them are those of the mixture, and nothing cancels far from 0.
        """
        block = stored[start:stop] if self.chosen is None else stored[self.chosen[start:stop]]
        # Kept probabilities were rounded, so each row is divided by its sum again.
        if self.targets.dtype.kind in "iu":
            return normalise_rows(block)
        wide = block.astype(np.float64)
        if wide.ndim == 2:
            return wide
        difference = wide[..., 0] - self.targets[start:stop]
        return np.stack([difference, difference**2 + wide[..., 1]], axis=-1)

    def combined(self, mean: Array, start: int) -> Array:
        """Return the predictions of which `mean` is the mean of terms, rows from `start` on."""
        if mean.ndim == 2:
            return mean
        difference, second = mean[..., 0], mean[..., 1]
        return np.stack([difference + self.targets[start : start + len(mean)], second - difference**2], axis=-1)

    def subset(self, rows: Array) -> "Candidates":
        """Return the same members on the rows at these positions."""
        return replace(
            self,
            targets=self.targets[rows],
            true=None if self.true is None else self.true[:, rows],
            chosen=rows if self.chosen is None else self.chosen[rows],
        )


class Scorer(ABC):
    """Losses of "these picks and one candidate more", averaged with equal weight per pick. Keeps what it has computed.

    Runs with other weights and budgets mostly walk through the same picks, so a further run is nearly free.
    """

    def __init__(self, candidates: Candidates, metric: Metric) -> None:
        self.candidates, self.metric = candidates, metric
        self._losses: dict[Picks, Array] = {}
        self._last: tuple[Picks, Array] | None = None

    def losses(self, picks: Picks, wanted: Indices) -> Array:
        """Return the float64 losses of `picks` with each wanted candidate added."""
        # Losses are cached by the picks so far, since runs under other prices repeat the same first steps.
        stored = self._losses.get(picks)
        if stored is None:
            stored = self._losses[picks] = np.full(len(self.candidates), np.nan)
        # Only candidates that no earlier run asked for are computed.
        missing = wanted[np.isnan(stored[wanted])]
        if len(missing):
            stored[missing] = self._compute_losses(self._sum_picks(picks), len(picks) + 1, missing)
        return np.asarray(stored[wanted])

    def loss(self, picks: Picks) -> float:
        """Return the loss of picks, at least one."""
        return float(self.losses(picks[:-1], np.array(picks[-1:]))[0])

    @abstractmethod
    def per_row(self, picks: Picks) -> Array:
        """Return the loss of each row [N] for picks, at least one; their mean is the loss."""

    @abstractmethod
    def _empty_sum(self) -> Array:
        """Return the sum of no predictions."""

    @abstractmethod
    def _add_candidate(self, total: Array, index: int) -> Array:
        """Return the sum of predictions with one candidate's added."""

    @abstractmethod
    def _compute_losses(self, total: Array, count: int, wanted: Indices) -> Array:
        """Return the losses of (total + candidate) / count for each candidate wanted."""

    def _sum_picks(self, picks: Picks) -> Array:
        # Always added in the order of picking, so that a sum does not depend on what was asked before.
        if self._last is not None and self._last[0] == picks:
            return self._last[1]
        if self._last is not None and picks and self._last[0] == picks[:-1]:
            total = self._add_candidate(self._last[1], picks[-1])
        else:
            total = self._empty_sum()
            for index in picks:
                total = self._add_candidate(total, index)
        self._last = (picks, total)
        return total


class RowScorer(Scorer):
    """Any metric, from whole rows [N, C] in float64, O(L N C) a step, in blocks that fit a cache."""

    def per_row(self, picks: Picks) -> Array:
        """Return the loss of each row [N] for picks."""
        found = self.candidates.combined(self._sum_picks(picks) / len(picks), 0)
        return self.metric.row_losses(found, self.candidates.targets)

    def _empty_sum(self) -> Array:
        return np.zeros(self.candidates.shape)

    def _add_candidate(self, total: Array, index: int) -> Array:
        return np.asarray(total + self.candidates.rows(index))

    def _compute_losses(self, total: Array, count: int, wanted: Indices) -> Array:
        rows = len(total)
        if self.metric.per_row is None:
            return np.array([self._loss_of_all(total, count, int(index)) for index in wanted])
        # Rows go in blocks that fit a core's cache: the temporary mean of a block is used while it is there.
        height = max(1, _BLOCK_BYTES // (8 * (total.size // rows)))
        scores = np.empty((len(wanted), rows))
        for position, index in enumerate(wanted):
            stored = self.candidates.read_member(int(index))
            for start in range(0, rows, height):
                part = slice(start, min(start + height, rows))
                mean = (total[part] + self.candidates.terms(stored, part.start, part.stop)) / count
                found = self.candidates.combined(mean, start)
                scores[position, part] = self.metric.per_row(found, self.candidates.targets[part])
        return np.asarray(self.metric.loss(scores.mean(axis=1)))

    def _loss_of_all(self, total: Array, count: int, index: int) -> float:
        found = self.candidates.combined((total + self.candidates.rows(index)) / count, 0)
        return float(self.metric.loss(np.asarray(self.metric.score(found, self.candidates.targets))))


class TrueClassScorer(Scorer):
    """Cross-entropy from the true class's probability alone: log((S + P) / k) = log(S + P) - log k."""

    def __init__(self, candidates: Candidates, metric: Metric) -> None:
        super().__init__(candidates, metric)
        if candidates.true is None:
            raise ValueError("TrueClassScorer needs the probability of the true class")
        count, self._rows = candidates.true.shape
        # Filled up to a multiple of the terms, with 0 here and 1 in the sum: log(1 + 0) adds nothing.
        self._true = np.zeros((count, -(-self._rows // _TERMS) * _TERMS), dtype=np.float32)
        np.maximum(candidates.true, np.float32(SMALLEST), out=self._true[:, : self._rows])

    def per_row(self, picks: Picks) -> Array:
        """Return the loss of each row [N] for picks."""
        return np.asarray(-np.log(self._sum_picks(picks)[: self._rows] / len(picks)))

    def _empty_sum(self) -> Array:
        total = np.ones(self._true.shape[1])
        total[: self._rows] = 0.0
        return total

    def _add_candidate(self, total: Array, index: int) -> Array:
        return np.asarray(total + self._true[index])

    def _compute_losses(self, total: Array, count: int, wanted: Indices) -> Array:
        # One logarithm for a product of 32 terms: they lie in [1e-7, 1e9], so products within [1e-224, 1e288].
        products = np.empty((len(wanted), len(total) // _TERMS))
        for position, index in enumerate(wanted):
            np.multiply.reduce((total + self._true[index]).reshape(_TERMS, -1), axis=0, out=products[position])
        # -log((S + P) / k) = log k - log(S + P), and what fills up the last product adds log 1 = 0.
        return np.asarray(math.log(count) - np.log(products).sum(axis=1) / self._rows)


def make_scorer(candidates: Candidates, metric: Metric) -> Scorer:
    """Return the fastest scorer of this metric for these candidates."""
    # Cross-entropy needs one column of each prediction, so its scorer reads C times less.
    if metric.of_true is not None and candidates.true is not None:
        return TrueClassScorer(candidates, metric)
    return RowScorer(candidates, metric)


def prior_loss(candidates: Candidates, metric: Metric) -> float:
    """Return the loss of a predictor that knows only the targets' distribution: class shares, or mean and variance."""
    targets = candidates.targets
    if targets.dtype.kind in "iu":
        # Classes: every row gets the share of each class as its probability.
        shares = np.bincount(targets) / len(targets)
        found = np.broadcast_to(shares, (len(targets), len(shares)))
    else:
        # Values: every row gets the mean, and where variances are predicted the variance of the targets.
        mean = np.broadcast_to(targets.mean(axis=0, dtype=np.float64), targets.shape)
        variance = np.broadcast_to(targets.var(axis=0, dtype=np.float64) + SMALLEST, targets.shape)
        found = np.stack([mean, variance], axis=-1) if len(candidates.shape) == 3 else mean
    return float(metric.loss(np.asarray(metric.score(found, targets))))
