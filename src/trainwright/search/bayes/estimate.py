"""What a forest believes of the loss: leaves as large as unseen results ask for, so that noise is averaged out."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainwright.search.bayes.forest_model import Forest, Growth
from trainwright.search.view import SearchView

__all__ = ["Estimate"]

Array = NDArray[np.float64]

_LEAVES = (2, 4, 8, 16, 32, 64)  # rows of the smallest nodes that are split
_FOLDS = 5
_MOST = 2000  # rows
_GROWTH = Growth(
    trees=50,
    refit="always",
    scaler="identity",
    failures="ignore",
    scalarisation="linear",
    weights=None,
    max_rows=_MOST,
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean loss of the first objective at full fidelity, from a forest whose leaf size 5-fold error has chosen.

    Losses are clipped at Q3 + 1.5 IQR. Failed trials are left out.
    """

    view: SearchView
    forest: Forest
    least_rows: int
    middle: float
    scale: float

    @classmethod
    def of(cls, view: SearchView) -> "Estimate":
        """Return the estimate from the told rows, of which the newest 2,000 count; there must be a finite one."""
        finished = np.flatnonzero(~view.failed)[-_MOST:]
        losses = view.losses[finished, 0]
        low, high = np.quantile(losses, [0.25, 0.75])
        losses = np.minimum(losses, high + 1.5 * (high - low)) if high > low else losses
        middle, scale = _middle_and_scale(losses)
        y = (losses - middle) / scale
        least_rows = _least_error(view, finished, y)
        return cls(view, _grown(view, finished, y, least_rows), least_rows, middle, scale)

    def predict(self, rows: Array) -> tuple[Array, Array]:
        """Return the mean and the deviation of the trees' means [rows] at rows of the space, in units of the loss."""
        M = np.ones((len(rows), self.view.space.dimension + 1))
        M[:, :-1] = self.view.space.model_matrix(rows)
        mean, deviation, _ = self.forest.predict(M)
        return self.middle + self.scale * mean, self.scale * deviation


def _grown(view: SearchView, places: NDArray[np.intp], losses: Array, least_rows: int) -> Forest:
    part = view.part(places, losses[:, None])
    forest = Forest(replace(_GROWTH, least_rows=least_rows), part)
    forest.update(part)
    forest.value(np.ones(1))
    return forest


def _least_error(view: SearchView, finished: NDArray[np.intp], losses: Array) -> int:
    """Return the leaf size of least squared error at ends of trials whose configuration the forest has not seen."""
    _, configuration = np.unique(view.space.row_keys(view.rows[finished]), return_inverse=True)
    _, first, place = np.unique(configuration, return_index=True, return_inverse=True)
    fold = np.argsort(np.argsort(first))[place] % _FOLDS  # by order of arrival, all rows of one configuration together
    if fold.max() < _FOLDS - 1:
        return _LEAVES[0]
    # Cross-validation by configuration: repeated ones stay in one fold, or noise would look predictable.
    errors = np.zeros(len(_LEAVES))
    M = np.column_stack([view.space.model_matrix(view.rows[finished]), view.progress[finished]])
    judged = view.complete[finished]
    for at in range(_FOLDS):
        rest, out = fold != at, (fold == at) & judged
        for size, least_rows in enumerate(_LEAVES):
            forest = _grown(view, finished[rest], losses[rest], least_rows)
            errors[size] += float(((forest.predict(M[out])[0] - losses[out]) ** 2).sum())
    return _LEAVES[int(np.argmin(errors))]


def _middle_and_scale(losses: Array) -> tuple[float, float]:
    """Return mean and deviation, in halves, since the range of doubles is no double."""
    half = 0.5 * losses
    top = float(np.abs(half).max()) or 1.0
    return 2.0 * float(half.mean()), 2.0 * top * float((half / top).std()) or 1.0
