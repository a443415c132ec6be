"""A response surface: the mean of a Gaussian process over the rows of a space, with or without a quadratic trend.

A focused search leaves few trials far from its optimum. There a process falls back to the mean, so that a parameter
that was varied little seems to matter little; a trend of each parameter's first and second order goes on (universal
kriging: Matheron, 1969). Where the truth has no such shape, the trend does harm. Which of the two is taken, and how far
outlying losses are clipped, is decided by the error at left-out trials, which a process has in closed form (Dubrule,
Mathematical Geology 15, 1983).
"""

from typing import Self

import numpy as np

from trainwright.aliases import Array
from trainwright.randomness import rng
from trainwright.search.bayes.gaussian_process import Embedding, Hyperparameters, Posterior, fit_hyperparameters
from trainwright.space import Space

__all__ = ["ResponseSurface"]


_CLIPS = (1.5, 5.0, 20.0)  # quartile ranges beyond the quartiles, to which losses may be clipped
_PENALTIES = np.logspace(-3.0, 3.0, 25)  # of the trend's coefficients
_SINGLE = 0.999  # leverage of a trial that alone decides a coefficient


class ResponseSurface:
    """The predicted mean of a metric over a space; `chance` adds columns to the rows that mean nothing."""

    def __init__(
        self,
        space: Space,
        rows: Array,
        y: Array,
        generator: np.random.Generator,
        *,
        trend: bool,
        like: Hyperparameters | None = None,
        chance: Array | None = None,
    ) -> None:
        self.space, self.trend = space, trend
        self._embedding = Embedding(space, fidelity=False)
        self.extra_columns = 0 if chance is None else chance.shape[1]
        owners = np.concatenate([self._embedding.owners, space.dimension + np.arange(self.extra_columns)])
        points = self._points(rows, chance)
        self._mean = float(y.mean())
        target = residual = y - self._mean
        terms = _trend_terms(space, rows, chance)
        self._centre = terms.mean(axis=0)
        terms = terms - self._centre
        variance = 0.0  # of the trend's coefficients
        if trend:
            variance, residual = _fit_trend(terms, target)
        # The process is fitted to what the trend leaves; both together then explain the targets.
        self._scale = float(residual.std()) or 1.0
        self.hyperparameters = fit_hyperparameters(points, owners, residual / self._scale, generator, like=like)
        self._posterior = Posterior.of(self.hyperparameters, points, owners)
        covariance = self._scale**2 * (self._posterior.factor @ self._posterior.factor.T)
        inverse = np.linalg.inv(covariance + variance * (terms @ terms.T))
        self._alpha: Array = inverse @ target
        self._coefficients: Array = variance * (terms.T @ self._alpha)
        # The error at a trial, had it been left out, without fitting again.
        left_out = self._alpha / inverse.diagonal()
        self.explained = 1.0 - float((left_out**2).mean()) / float(y.var())

    @classmethod
    def choose(cls, space: Space, rows: Array, y: Array, seed: int) -> tuple[Self, Array]:
        """Return the surface of least left-out error, as a share of the variance, and its standardised targets.

        `y` may be on any scale, with outliers; the targets are all 0 if no clip leaves a difference.
        """
        best: tuple[Self, Array] | None = None
        for clip in _CLIPS:
            targets = _clip_and_standardise(y, clip)
            for trend in (False, True):
                surface = cls(space, rows, targets, rng(seed, "importance", 0), trend=trend)
                if best is None or surface.explained > best[0].explained:
                    best = surface, targets
        assert best is not None  # noqa: S101 -- there are clips
        return best

    def predict(self, rows: Array, chance: Array | None = None) -> Array:
        """Return the mean at settled rows, on the scale of the targets."""
        # The mean alone: noise of single results is no effect of a parameter.
        across = self._posterior.between(self._posterior.points, self._points(rows, chance))
        predicted: Array = self._mean + self._scale**2 * (self._alpha @ across)
        if self.trend:
            predicted += (_trend_terms(self.space, rows, chance) - self._centre) @ self._coefficients
        return predicted

    def _points(self, rows: Array, chance: Array | None) -> Array:
        points = self._embedding(rows)
        return points if chance is None else np.concatenate([points, chance], axis=1)


def _fit_trend(terms: Array, target: Array) -> tuple[float, Array]:
    """Return the prior variance of the coefficients of a ridge regression, and its residuals.

    The penalty is the one of least error at left-out trials; its noise is that error.
    """
    left, singular, _ = np.linalg.svd(terms, full_matrices=False)
    seen = left.T @ target
    best = (np.inf, 1.0, target)
    for penalty in _PENALTIES:
        kept_share = singular**2 / (singular**2 + penalty)
        leverage = (left * left * kept_share).sum(axis=1) + 1.0 / len(target)
        residual = target - left @ (kept_share * seen)
        error = float(((residual / (1.0 - np.minimum(leverage, _SINGLE))) ** 2).mean())
        if error < best[0]:
            best = (error, float(penalty), residual)
    error, penalty, residual = best
    return error / penalty, residual


def _trend_terms(space: Space, rows: Array, chance: Array | None) -> Array:
    """Return the first and second Legendre polynomial of each unit column, and the codes of each choice."""
    terms = []
    for c, column in enumerate(space.columns):
        values, active = rows[:, c], ~np.isnan(rows[:, c])
        if space.parameters[column.name].when is not None:
            terms.append(np.where(active, 0.0, 1.0))
        if column.kind == "choice":
            terms += [np.where(values == code, 1.0, 0.0) for code in range(column.points or 1)]
        else:
            terms += [np.where(active, term, 0.0) for term in _legendre(values)]
    for values in np.empty((0, 0)) if chance is None else chance.T:
        terms += _legendre(values)
    return np.array(terms).T


def _legendre(units: Array) -> list[Array]:
    """Return the polynomials of degree 1 and 2, of variance 1 over the unit interval."""
    position = 2.0 * units - 1.0
    return [3.0**0.5 * position, 5.0**0.5 * (1.5 * position**2 - 0.5)]


def _clip_and_standardise(values: Array, clip: float) -> Array:
    """Return values that a few diverged trials do not decide, with mean 0 and deviation 1."""
    low, high = np.quantile(values, [0.25, 0.75])
    if high > low:
        values = np.clip(values, low - clip * (high - low), high + clip * (high - low))
    else:  # more than half are equal, so that only the order of the others can be used
        values = np.unique(values, return_inverse=True)[1].astype(np.float64)
    deviation = values.std()
    return (values - values.mean()) / deviation if deviation > 0 else np.zeros_like(values)
