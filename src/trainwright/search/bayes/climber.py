"""Maximises acquisitions by their gradient: the best candidates climb in the continuous columns, by L-BFGS."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.search.bayes.candidates import make_legal
from trainwright.search.bayes.gaussian_process import Embedding
from trainwright.search.bayes.loop import Acquisition
from trainwright.space import Space

__all__ = ["Climber"]

_STEPS = 20  # of a climb


class Climber(Acquisition):
    """An acquisition over the points of an embedding, as one figure of which the more is the better."""

    neighbours: ClassVar[float] = 0.5
    climbers: ClassVar[int] = 3

    def __init__(self, space: Space, embedding: Embedding) -> None:
        self._space, self._embedding = space, embedding
        self.appetites = np.zeros(1)  # an expected improvement weighs the unknown by itself
        continuous = [c for c, column in enumerate(space.columns) if column.kind == "unit" and column.points is None]
        self._continuous = np.array(continuous, dtype=np.intp)
        self._feature = np.array([embedding.unit_of[c] for c in continuous], dtype=np.intp)

    def score(self, predicted: Array, appetite: float) -> Array:  # noqa: ARG002 -- there is but one
        """Return the negated figures."""
        scores: Array = -predicted[0]
        return scores

    def climb(self, rows: Array, generator: np.random.Generator) -> Array:
        """Return the legal ones among the rows to which the continuous columns of `rows` climb.

        A climb may cross a threshold and bring a parameter to life, whose value is then drawn.
        """
        from scipy.optimize import minimize

        climbed = []
        for row, point in zip(rows, self._embedding(rows), strict=True):
            # Inactive columns have no gradient; choices and grids stay where they are.
            active = ~np.isnan(row[self._continuous])
            columns, places = self._continuous[active], self._feature[active]
            if not len(columns):
                continue
            found = minimize(
                self.descent, row[columns], args=(point.copy(), places, row, columns), jac=True, method="L-BFGS-B",
                bounds=[(0.0, 1.0)] * len(columns), options={"maxiter": _STEPS},
            )  # fmt: skip
            latent = row.copy()
            latent[columns] = found.x
            climbed.append(latent)
        if not climbed:
            return rows[:0]
        return make_legal(self._space, np.array(climbed), generator)

    @abstractmethod
    def descent(
        self, units: Array, point: Array, places: NDArray[np.intp], row: Array, columns: NDArray[np.intp]
    ) -> tuple[float, Array]:
        """Return minus the figure, and its gradient, where the `columns` of a row have such units.

        `point` is the row's embedding, whose features `places` are these columns; it may be changed.
        """
