"""What selection works on: the kept predictions of all members on one split, and the losses of sums of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainwright.ensemble.metrics import SMALLEST, Array, Metric
from trainwright.ensemble.predictions import normalised

__all__ = ["Candidates", "RowScorer", "Scorer", "TrueClassScorer", "scorer_of"]

Indices = npt.NDArray[np.intp]
Picks = tuple[int, ...]  # indices of candidates in the order of picking; repeats count

_BLOCK_BYTES = 1 << 18  # temporaries that stay in a core's cache


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Columns over L members, in ascending trial number, for one split of N rows."""

    trials: Array  # [L]
    targets: Array  # classes [N] or values [N, C]
    true: Array | None = None  # probability of the true class [L, N], float32; all that cross-entropy needs
    predictions: Sequence[Array] = ()  # L times [N, C] as kept, may be memory-mapped; empty if `true` is enough
    seconds: Array | None = None  # per row [L]; None if not measured
    sizes: Array | None = None  # weight bytes [L]; None if unknown

    def __len__(self) -> int:
        return len(self.trials)

    def rows(self, index: int, start: int = 0, stop: int | None = None) -> Array:
        """Return rows of one member's predictions in float64; class probabilities sum to 1."""
        block = self.predictions[index][start:stop]
        return normalised(block) if self.targets.dtype.kind in "iu" else block.astype(np.float64)


class Scorer(ABC):
    """Losses of "these picks and one candidate more", averaged with equal weight per pick. Keeps what it has computed.

    Runs with other weights and budgets mostly walk through the same picks, so a further run is nearly free.
    """

    def __init__(self, candidates: Candidates, metric: Metric) -> None:
        self.candidates, self.metric = candidates, metric
        self._kept: dict[Picks, Array] = {}
        self._last: tuple[Picks, Array] | None = None

    def losses(self, picks: Picks, wanted: Indices) -> Array:
        """Return the float64 losses of `picks` with each wanted candidate added."""
        kept = self._kept.setdefault(picks, np.full(len(self.candidates), np.nan))
        missing = wanted[np.isnan(kept[wanted])]
        if len(missing):
            kept[missing] = self._compute(self._total(picks), len(picks) + 1, missing)
        return np.asarray(kept[wanted])

    @abstractmethod
    def _nothing(self) -> Array:
        """Return the sum of no predictions."""

    @abstractmethod
    def _add(self, total: Array, index: int) -> Array:
        """Return the sum of predictions with one candidate's added."""

    @abstractmethod
    def _compute(self, total: Array, count: int, wanted: Indices) -> Array:
        """Return the losses of (total + candidate) / count for each candidate wanted."""

    def _total(self, picks: Picks) -> Array:
        # Always added in the order of picking, so that a sum does not depend on what was asked before.
        if self._last is not None and self._last[0] == picks:
            return self._last[1]
        if self._last is not None and picks and self._last[0] == picks[:-1]:
            total = self._add(self._last[1], picks[-1])
        else:
            total = self._nothing()
            for index in picks:
                total = self._add(total, index)
        self._last = (picks, total)
        return total


class RowScorer(Scorer):
    """Any metric, from whole rows [N, C] in float64, O(L N C) for a step, read in blocks that fit a cache."""

    def _nothing(self) -> Array:
        return np.zeros(self.candidates.predictions[0].shape)

    def _add(self, total: Array, index: int) -> Array:
        return np.asarray(total + self.candidates.rows(index))

    def _compute(self, total: Array, count: int, wanted: Indices) -> Array:
        rows, columns = total.shape
        height = max(1, _BLOCK_BYTES // (8 * columns))
        scores = np.empty((len(wanted), rows))
        for start in range(0, rows, height):
            part = slice(start, min(start + height, rows))
            for position, index in enumerate(wanted):
                mean = (total[part] + self.candidates.rows(int(index), part.start, part.stop)) / count
                scores[position, part] = self.metric.per_row(mean, self.candidates.targets[part])
        return np.asarray(self.metric.loss(scores.mean(axis=1)))


class TrueClassScorer(Scorer):
    """Cross-entropy from the true class's probability alone: log((S + P) / k) = log(S + P) - log k."""

    def __init__(self, candidates: Candidates, metric: Metric) -> None:
        super().__init__(candidates, metric)
        if candidates.true is None:
            raise ValueError("TrueClassScorer needs the probability of the true class")
        from trainwright.ensemble.products import TERMS, log_sums

        self._log_sums = log_sums
        count, self._rows = candidates.true.shape
        # Filled up to a multiple of the terms, with 0 here and 1 in the sum: log(1 + 0) adds nothing.
        self._true = np.zeros((count, -(-self._rows // TERMS) * TERMS), dtype=np.float32)
        np.maximum(candidates.true, np.float32(SMALLEST), out=self._true[:, : self._rows])

    def _nothing(self) -> Array:
        total = np.ones(self._true.shape[1])
        total[: self._rows] = 0.0
        return total

    def _add(self, total: Array, index: int) -> Array:
        return np.asarray(total + self._true[index])

    def _compute(self, total: Array, count: int, wanted: Indices) -> Array:
        return np.asarray(math.log(count) - self._log_sums(total, self._true, wanted) / self._rows)


def scorer_of(candidates: Candidates, metric: Metric) -> Scorer:
    """Return the fastest scorer of this metric for these candidates."""
    if metric.of_true is not None and candidates.true is not None:
        return TrueClassScorer(candidates, metric)
    return RowScorer(candidates, metric)
