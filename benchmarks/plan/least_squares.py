"""Robust least squares for positive constants of a cost model, one set for all measurements.

Constants are searched on a logarithmic scale and residuals are log(predicted / measured), so that an error of 10 %
counts the same for a second and for an hour. The loss is quadratic up to `tolerance` and linear beyond, so that one bad
run pulls no more than any other (soft L1; Huber 1964). Trust regions with bounds, from several starts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainwright.errors import InputError
from trainwright.randomness import rng

__all__ = ["ConstantFit", "FitConstant", "Floats", "Predict", "checked_seconds", "fit_constants"]

Floats = NDArray[np.float64]
Predict = Callable[[Mapping[str, float]], ArrayLike]
"""From values of the constants by name to the predicted seconds of every measurement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitConstant:
    """A free constant: where the search starts and between which values it stays, all above 0."""

    name: str
    start: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < float("inf"):
            raise InputError(
                f"Constant {self.name!r}: got low {self.low!r}, high {self.high!r}; allowed: 0 < low < high"
            )
        if not self.low <= self.start <= self.high:
            raise InputError(
                f"Constant {self.name!r}: got start {self.start!r}; allowed: {self.low!r} to {self.high!r}"
            )


@dataclass(frozen=True, kw_only=True)
class ConstantFit:
    """What the search found."""

    values: Mapping[str, float]
    residuals: tuple[float, ...]
    """log(predicted / measured) of each measurement."""
    loss: float
    at_bounds: tuple[str, ...]
    """Constants that ended at an end of their range: the measurements do not determine them, or the range is wrong."""
    uncertain: tuple[str, ...]
    """Constants that can change by a factor of e with no visible effect on what is predicted."""

    @property
    def error(self) -> float:
        """Median relative error over the measurements."""
        return float(np.median(np.abs(np.expm1(self.residuals))))


def fit_constants(
    constants: Sequence[FitConstant],
    predict: Predict,
    measured: ArrayLike,
    *,
    tolerance: float = 0.05,
    starts: int = 4,
    seed: int = 0,
) -> ConstantFit:
    """Return the values of `constants` for which `predict` comes closest to the `measured` seconds.

    `tolerance` is the relative error up to which errors count by their square. The first search starts where the
    constants say, the others at places drawn around it by counter-based randomness. Raises `InputError` if there are no
    constants, no measurements, a measurement that is not above 0, or predictions that are not as many or not finite.
    """
    from scipy.optimize import least_squares

    seconds = checked_seconds(measured)
    if not constants or len({constant.name for constant in constants}) < len(constants):
        names = [constant.name for constant in constants]
        raise InputError(f"constants: got {names!r}; allowed: one or more, each name once")
    low, high = (np.log([getattr(constant, end) for constant in constants]) for end in ("low", "high"))
    origin = np.log([constant.start for constant in constants])
    names = [constant.name for constant in constants]

    def residuals(place: Floats) -> Floats:
        values = {name: float(value) for name, value in zip(names, np.exp(place), strict=True)}
        return _residuals(predict(values), seconds)

    places = [origin, *(origin + rng(seed, "fit", start).normal(0.0, 0.7, len(origin)) for start in range(1, starts))]
    searches = [
        least_squares(
            residuals, np.clip(place, low + 1e-6, high - 1e-6), bounds=(low, high), loss="soft_l1", f_scale=tolerance
        )
        for place in places
    ]
    best = min(searches, key=lambda search: float(search.cost))
    # A constant at an end of its range, or without a visible gradient, is not determined by these measurements.
    ends = np.minimum(best.x - low, high - best.x) < 1e-3 * (high - low)
    moves = np.sqrt((best.jac**2).sum(axis=0))
    return ConstantFit(
        values=dict(zip(names, (float(value) for value in np.exp(best.x)), strict=True)),
        residuals=tuple(float(value) for value in residuals(best.x)),
        loss=float(best.cost),
        at_bounds=tuple(name for name, at in zip(names, ends, strict=True) if at),
        uncertain=tuple(name for name, move in zip(names, moves, strict=True) if move < 1e-3),
    )


def checked_seconds(measured: ArrayLike) -> Floats:
    """Return measurements as an array. Raises `InputError` unless there are some, each above 0."""
    seconds: Floats = np.asarray(measured, dtype=np.float64)
    if seconds.ndim != 1 or not seconds.size or not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise InputError(f"measured: got {seconds.tolist()!r}; allowed: one or more seconds, each above 0")
    return seconds


def _residuals(predicted: ArrayLike, seconds: Floats) -> Floats:
    values: Floats = np.asarray(predicted, dtype=np.float64)
    if values.shape != seconds.shape or not np.all(np.isfinite(values) & (values > 0)):
        raise InputError(
            f"predictions: got {values.tolist()!r} for {seconds.size} measurements; allowed: one above 0 for each"
        )
    logs: Floats = np.log(values / seconds)
    return logs
