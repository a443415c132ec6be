"""Fits with intervals that hold beyond what was measured, for the published baselines; the search is the oracle's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from benchmarks.plan import least_squares
from benchmarks.plan.extrapolation_error import Reach, conformal, reach_margin, reach_of
from benchmarks.plan.least_squares import FitConstant, Floats, Predict, checked_seconds
from numpy.typing import ArrayLike, NDArray

from trainwright.errors import InputError

__all__ = ["Fit", "FitConstant", "Floats", "Predict", "fit_constants", "leave_out"]


@dataclass(frozen=True, kw_only=True)
class Fit(least_squares.ConstantFit):
    """What the search found, and how far it errs beyond what it saw."""

    reach: Mapping[str, Reach] = field(default_factory=dict)
    """Of each covariate that was given: what the fit saw of it, and how it errs beyond."""

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
    constants: Sequence[FitConstant],
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
    seconds = checked_seconds(measured)
    found = least_squares.fit_constants(constants, predict, seconds, tolerance=tolerance, starts=starts, seed=seed)

    def without(held: NDArray[np.bool_]) -> Floats:
        return leave_out(constants, predict, seconds, held, tolerance=tolerance, starts=1, seed=seed)[1]

    reach = {
        name: reach_of(_column(name, values, seconds), seconds, without) for name, values in (covariates or {}).items()
    }
    return Fit(**{each.name: getattr(found, each.name) for each in fields(least_squares.ConstantFit)}, reach=reach)


def leave_out(
    constants: Sequence[FitConstant],
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
    seconds = checked_seconds(measured)
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
