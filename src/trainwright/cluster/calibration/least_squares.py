"""Fits of measured times: non-negative least squares on the relative error, shortest and middle of several repeats."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainwright.errors import InputError

__all__ = ["RelativeFit", "fit_least_relative", "median", "middle", "shortest", "spread"]


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
    times = _check_times(np.asarray(seconds, dtype=np.float64))
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
            if values.min() >= 0 and loss < least:
                best, least = np.zeros(table.shape[1]), loss
                best[list(chosen)] = values / scale[list(chosen)]
    return RelativeFit(tuple(best.tolist()), tuple((weighted @ best - 1).tolist()))


def shortest(repeats: Sequence[float]) -> float:
    """Return the least of repeated measurements: what disturbs one only makes it longer.

    Raises `InputError` if one of them is no time.
    """
    return float(_check_times(np.asarray(repeats, dtype=np.float64)).min())


def median(repeats: Sequence[float]) -> float:
    """Return the median of repeated measurements, of what is never undisturbed: ranks that wait for each other.

    Raises `InputError` if one of them is no time.
    """
    return float(np.median(_check_times(np.asarray(repeats, dtype=np.float64))))


def middle(repeats: Sequence[float]) -> float:
    """Return the mean of the middle half of repeated measurements, of what is now one way and now another.

    Raises `InputError` if one of them is no time.
    """
    times = np.sort(_check_times(np.asarray(repeats, dtype=np.float64)))
    return float(times[len(times) // 4 : len(times) - len(times) // 4].mean())


def spread(repeats: Sequence[float]) -> float:
    """Return the standard deviation that the middle half of repeated measurements would have of normal ones.

    What goes wrong once, such as a processor taken away for a while, does not count.
    """
    # The middle half of a normal law is 1.349 standard deviations wide.
    low, high = np.quantile(np.asarray(repeats, dtype=np.float64), [0.25, 0.75])
    return float(high - low) / 1.349


def _check_times(times: NDArray[np.float64]) -> NDArray[np.float64]:
    wrong = times[~(np.isfinite(times) & (times > 0))]
    if wrong.size or not times.size:
        raise InputError(
            f"measured times: got {wrong[0] if wrong.size else 'none'}; allowed: seconds > 0; the clock stood still or "
            "was set back while measuring: measure again"
        )
    return times
