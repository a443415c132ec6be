"""What a forest believes of the loss: leaves as large as unseen results ask for, so that noise is averaged out."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainwright.search._forest import Forest, Growth
from trainwright.search.view import View

__all__ = ["Estimate"]

Array = NDArray[np.float64]

_DELTAS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # least weighted variance drops of a split: sizes of leaves
_FOLDS = 5
_MOST = 2000  # rows
_GROWTH = Growth(
    trees=50,
    kind="extra",
    refit="always",
    scaler="identity",
    failures="ignore",
    scalarisation="linear",
    weights=None,
    delta=0.0,
    patience=2**31,
    max_rows=_MOST,
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean loss of the first objective at full fidelity, from a forest whose leaf size 5-fold error has chosen.

    Losses are clipped at Q3 + 1.5 IQR. Failed trials are left out.
    """

    view: View
    forest: Forest
    delta: float

    @classmethod
    def of(cls, view: View) -> "Estimate":
        """Return the estimate from the told rows, of which the newest 2,000 count; there must be a finite one."""
        told = np.flatnonzero(~view.failed)[-_MOST:]
        losses = view.losses[told, 0]
        low, high = np.quantile(losses, [0.25, 0.75])
        losses = np.minimum(losses, high + 1.5 * (high - low)) if high > low else losses
        delta = _least_error(view, told, losses)
        return cls(view, _grown(view, told, losses, delta), delta)

    def predict(self, rows: Array) -> tuple[Array, Array]:
        """Return the mean and the deviation of the trees' means [rows] at rows of the space, in units of the loss."""
        M = np.ones((len(rows), self.view.space.dimension + 1))
        M[:, :-1] = self.view.space.model_matrix(rows)
        mean, deviation, _ = self.forest.predict(M)
        return mean, deviation


def _grown(view: View, places: NDArray[np.intp], losses: Array, delta: float) -> Forest:
    part = view.part(places, losses[:, None])
    forest = Forest(replace(_GROWTH, delta=delta), part)
    forest.update(part)
    forest.value(np.ones(1))
    return forest


def _least_error(view: View, told: NDArray[np.intp], losses: Array) -> float:
    """Return the delta of least squared error at ends of trials whose configuration the forest has not seen."""
    _, configuration = np.unique(view.space.row_keys(view.rows[told]), return_inverse=True)
    _, first, place = np.unique(configuration, return_index=True, return_inverse=True)
    fold = np.argsort(np.argsort(first))[place] % _FOLDS  # by order of arrival, all rows of one configuration together
    if fold.max() < _FOLDS - 1:
        return _DELTAS[0]
    errors = np.zeros(len(_DELTAS))
    M = np.column_stack([view.space.model_matrix(view.rows[told]), view.progress[told]])
    judged = view.complete[told]
    for at in range(_FOLDS):
        rest, out = fold != at, (fold == at) & judged
        for place_, delta in enumerate(_DELTAS):
            forest = _grown(view, told[rest], losses[rest], delta)
            errors[place_] += float(((forest.predict(M[out])[0] - losses[out]) ** 2).sum())
    return _DELTAS[int(np.argmin(errors))]
