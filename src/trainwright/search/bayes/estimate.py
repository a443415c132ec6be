"""Estimates the noise-free loss by a forest: leaves as large as unseen results ask for, so that noise averages out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.search.bayes.forest_model import Trees
from trainwright.search.view import SearchView

__all__ = ["Estimate"]


_LEAVES = (2, 4, 8, 16, 32, 64)  # rows of the smallest nodes that are split
_FOLDS = 5
_MOST = 2000  # rows
_TREES = 50


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean loss of the first objective at full fidelity, from a forest whose leaf size 5-fold error has chosen.

    Losses are clipped at Q3 + 1.5 IQR. Failed trials are left out.
    """

    view: SearchView
    trees: Trees
    least_rows: int
    middle: float
    scale: float

    @classmethod
    def of(cls, view: SearchView) -> "Estimate":
        """Return the estimate from the newest 2,000 observed rows, of which one must be finite."""
        finished = np.flatnonzero(~view.failed)[-_MOST:]
        losses = _clip_outliers(view.losses[finished, 0])
        middle, scale = _middle_and_scale(losses)
        y = (losses - middle) / scale
        M = np.column_stack([view.space.model_matrix(view.rows[finished]), view.progress[finished]])
        least_rows = _least_error(view, finished, M, y)
        return cls(view, _plant(view, M, y, least_rows), least_rows, middle, scale)

    def predict(self, rows: Array) -> tuple[Array, Array]:
        """Return the mean and the deviation of the trees' means [rows] at rows of the space, in units of the loss."""
        M = np.ones((len(rows), self.view.space.dimension + 1))
        M[:, :-1] = self.view.space.model_matrix(rows)
        mean, deviation = self.trees.predict(M)
        return self.middle + self.scale * mean, self.scale * deviation


def _plant(view: SearchView, M: Array, y: Array, least_rows: int) -> Trees:
    """Return trees that are planted from all of these rows at once."""
    trees, count = Trees(view.space, view.seed, _TREES, least_rows=least_rows), len(y)
    trees.reserve(count)
    y = _clip_outliers(y)
    # All trees are planted when the last row comes, from all rows.
    trees.grow(M, y, count - 1, count, np.full(_TREES, count))
    trees.average(y)
    return trees


def _least_error(view: SearchView, finished: NDArray[np.intp], M: Array, y: Array) -> int:
    """Return the leaf size of least squared error at ends of trials whose configuration the forest has not seen."""
    _, configuration = np.unique(view.space.row_keys(view.rows[finished]), return_inverse=True)
    _, first, place = np.unique(configuration, return_index=True, return_inverse=True)
    fold = np.argsort(np.argsort(first))[place] % _FOLDS  # by order of arrival, all rows of one configuration together
    if fold.max() < _FOLDS - 1:
        return _LEAVES[0]
    # Cross-validation by configuration: repeated ones stay in one fold, or noise would look predictable.
    errors = np.zeros(len(_LEAVES))
    judged = view.complete[finished]
    for at in range(_FOLDS):
        rest, out = fold != at, (fold == at) & judged
        for size, least_rows in enumerate(_LEAVES):
            trees = _plant(view, M[rest], y[rest], least_rows)
            errors[size] += float(((trees.predict(M[out])[0] - y[out]) ** 2).sum())
    return _LEAVES[int(np.argmin(errors))]


def _clip_outliers(losses: Array) -> Array:
    """Return losses with outliers at Q3 + 1.5 IQR, if half of them are not one number."""
    low, high = np.quantile(losses, [0.25, 0.75])
    return np.minimum(losses, high + 1.5 * (high - low)) if high > low else losses


def _middle_and_scale(losses: Array) -> tuple[float, float]:
    """Return mean and deviation, in halves, since the range of doubles is no double."""
    # The sum of two large losses may overflow where that of their halves does not.
    half = 0.5 * losses
    top = float(np.abs(half).max()) or 1.0
    return 2.0 * float(half.mean()), 2.0 * top * float((half / top).std()) or 1.0
