"""Fit: free constants of a cost model on measured seconds, one set for all measurements.

Constants are positive and searched on a logarithmic scale; residuals are log(predicted / measured), so that an error
of 10 % counts the same for a second and for an hour, under a loss that grows linearly beyond `tolerance`: one bad run
pulls no more than any other (soft L1; Huber 1964). Least squares by trust regions with bounds, from several starts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from benchmarks.plan.extrapolation_error import Reach, conformal, reach_margin, reach_of
from numpy.typing import ArrayLike, NDArray

from trainwright.errors import InputError
from trainwright.randomness import rng

__all__ = ["Constant", "Fit", "Floats", "Predict", "fit_constants", "leave_out"]

Floats = NDArray[np.float64]
Predict = Callable[[Mapping[str, float]], ArrayLike]
"""From values of the constants by name to the predicted seconds of every measurement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What the search found."""

    values: Mapping[str, float]
    residuals: tuple[float, ...]
    """log(predicted / measured) of each measurement."""
    loss: float
    at_bounds: tuple[str, ...]
    """Constants that ended at an end of their range: the measurements do not determine them, or the range is wrong."""
    uncertain: tuple[str, ...]
    """Constants that can change by a factor of e with no visible effect on what is predicted."""

    reach: Mapping[str, Reach] = field(default_factory=dict)
    """Of each covariate that was given: what the fit saw of it, and how it errs beyond."""

    @property
    def error(self) -> float:
        """Median relative error over the measurements."""
        return float(np.median(np.abs(np.expm1(self.residuals))))

    def interval(
        self, predicted: ArrayLike, *, level: float = 0.9, covariates: Mapping[str, ArrayLike] | None = None
    ) -> tuple[Floats, Floats]:
        """Return the low and high end between which a measurement lies with this probability, for each prediction.

        A factor to both sides: of the absolute residuals that of rank ceil((n + 1) level), as if the next measurement
        were one more of them (conformal prediction: Vovk, Gammerman and Shafer 2005), wider by sqrt(n / (n - k)) for
        the k constants that were fitted to the n. So it holds for measurements like those of the fit, on the whole and
        not for each kind of them. Where a covariate of a prediction lies beyond those of the fit, the factor is what
        fits without the ends of the measurements erred there, a doubling, if that is more (`extrapolation_error`).
        """
        if not 0 < level < 1:
            raise InputError(f"level: got {level!r}; allowed: a number between 0 and 1")
        count = len(self.residuals)
        usual = conformal(np.abs(self.residuals), level) * math.sqrt(count / max(1, count - len(self.values)))
        factor = np.exp(np.maximum(usual, reach_margin(self.reach, covariates or {}, level)))
        seconds = np.asarray(predicted, dtype=np.float64)
        return seconds / factor, seconds * factor


def fit_constants(
    constants: Sequence[Constant],
    predict: Predict,
    measured: ArrayLike,
    *,
    tolerance: float = 0.05,
    starts: int = 4,
    seed: int = 0,
    covariates: Mapping[str, ArrayLike] | None = None,
) -> Fit:
    """Return the values of `constants` for which `predict` comes closest to the `measured` seconds.

    `tolerance` is the relative error up to which errors count by their square. The first search starts where the
    constants say, the others at places drawn around it by counter-based randomness. Raises `InputError` if there are no
    constants, no measurements, a measurement that is not above 0, or predictions that are not as many or not finite.
    With `covariates` (name to a column, one number above 0 a measurement) two more fits a covariate, without its lowest
    and without its highest values, say how far the fit errs beyond what it saw: `Fit.interval` takes them into account.
    """
    from scipy.optimize import least_squares

    seconds = _seconds(measured)
    if not constants or len({each.name for each in constants}) < len(constants):
        raise InputError(f"constants: got {[each.name for each in constants]!r}; allowed: one or more, each name once")
    low, high = (np.log([getattr(each, end) for each in constants]) for end in ("low", "high"))
    origin = np.log([each.start for each in constants])

    def residuals(place: Floats) -> Floats:
        values = {each.name: float(value) for each, value in zip(constants, np.exp(place), strict=True)}
        return _residuals(predict(values), seconds)

    places = [origin, *(origin + rng(seed, "fit", start).normal(0.0, 0.7, len(origin)) for start in range(1, starts))]
    searches = [
        least_squares(
            residuals, np.clip(place, low + 1e-6, high - 1e-6), bounds=(low, high), loss="soft_l1", f_scale=tolerance
        )
        for place in places
    ]
    best = min(searches, key=lambda search: float(search.cost))

    def without(held: NDArray[np.bool_]) -> Floats:
        return leave_out(constants, predict, seconds, held, tolerance=tolerance, starts=1, seed=seed)[1]

    names = [each.name for each in constants]
    span = high - low
    ends = np.minimum(best.x - low, high - best.x) < 1e-3 * span
    moves = np.sqrt((best.jac**2).sum(axis=0))
    return Fit(
        values=dict(zip(names, (float(value) for value in np.exp(best.x)), strict=True)),
        residuals=tuple(float(value) for value in residuals(best.x)),
        loss=float(best.cost),
        at_bounds=tuple(name for name, at in zip(names, ends, strict=True) if at),
        uncertain=tuple(name for name, move in zip(names, moves, strict=True) if move < 1e-3),
        reach={
            name: reach_of(_column(name, values, seconds), seconds, without)
            for name, values in (covariates or {}).items()
        },
    )


def leave_out(
    constants: Sequence[Constant],
    predict: Predict,
    measured: ArrayLike,
    held: ArrayLike,
    *,
    tolerance: float = 0.05,
    starts: int = 4,
    seed: int = 0,
    covariates: Mapping[str, ArrayLike] | None = None,
) -> tuple[Fit, Floats]:
    """Fit without the measurements where `held` is true; return the fit and what it predicts for all measurements.

    `covariates` have an entry for every measurement, held out or not.
    """
    seconds = _seconds(measured)
    kept = ~np.asarray(held, dtype=np.bool_)
    if kept.shape != seconds.shape:
        raise InputError(f"held: got {kept.size} entries for {seconds.size} measurements; allowed: one for each")

    def visible(values: Mapping[str, float]) -> Floats:
        everything: Floats = np.asarray(predict(values), dtype=np.float64)
        return everything[kept]

    fit = fit_constants(
        constants,
        visible,
        seconds[kept],
        tolerance=tolerance,
        starts=starts,
        seed=seed,
        covariates={name: _column(name, values, seconds)[kept] for name, values in (covariates or {}).items()},
    )
    return fit, np.asarray(predict(fit.values), dtype=np.float64)


def _column(name: str, values: ArrayLike, seconds: Floats) -> Floats:
    column: Floats = np.asarray(values, dtype=np.float64)
    if column.shape != seconds.shape:
        raise InputError(f"covariates, {name}: got {column.size} entries for {seconds.size} measurements")
    return column


def _seconds(measured: ArrayLike) -> Floats:
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
