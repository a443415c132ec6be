"""Fits of measured times: non-negative least squares on the relative error."""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainwright.cluster.calibration.timing import check_times

__all__ = ["RelativeFit", "fit_least_relative"]


@dataclass(frozen=True, slots=True)
class RelativeFit:
    """Coefficients, all >= 0, and what they leave: (predicted - measured) / measured of each row."""

    values: tuple[float, ...]
    residuals: tuple[float, ...]

    @property
    def error(self) -> float:
        """Root of the mean square of the residuals."""
        return float(np.sqrt(np.mean(np.square(self.residuals))))


def fit_least_relative(columns: ArrayLike, seconds: ArrayLike) -> RelativeFit:
    """Fit seconds = columns @ values with values >= 0 so that the squared relative errors are least.

    `columns` is (rows, coefficients), of few coefficients: the best over all sets of those that are not zero is taken.
    Raises `InputError` for times that are NaN, infinite, zero or negative.
    """
    times = check_times(np.asarray(seconds, dtype=np.float64))
    table = np.asarray(columns, dtype=np.float64)
    # Divided by the measured times, the right side becomes 1 and residuals become relative errors.
    weighted = table / times[:, None]
    # Columns of very different size (seconds and seconds a byte) would make the system ill-conditioned.
    scale = np.maximum(np.abs(weighted).max(axis=0), np.finfo(float).tiny)
    best, least = np.zeros(table.shape[1]), float(len(times))
    # With few coefficients, trying every set that may be nonzero is the exact non-negative solution.
    for size in range(1, table.shape[1] + 1):
        for chosen in itertools.combinations(range(table.shape[1]), size):
            part = weighted[:, chosen] / scale[list(chosen)]
            values = np.linalg.lstsq(part, np.ones(len(times)), rcond=None)[0]
            loss = float(np.sum((part @ values - 1) ** 2))
            # A negative coefficient would be a negative latency or rate: such a set is no solution.
            if values.min() >= 0 and loss < least:
                best, least = np.zeros(table.shape[1]), loss
                best[list(chosen)] = values / scale[list(chosen)]
    return RelativeFit(tuple(best.tolist()), tuple((weighted @ best - 1).tolist()))
