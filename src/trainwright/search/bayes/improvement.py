"""Computes expected improvement, the acquisition of Gaussian processes: its logarithm, and its climb.

log EI = log h((best - mean) / deviation) + log deviation, h(u) = pdf(u) + u cdf(u), in the form of Ament et al.
(arXiv 2310.20708) that keeps its digits far below zero.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainwright.search.bayes.climber import Climber
from trainwright.search.bayes.gaussian_process import Embedding, Posterior
from trainwright.space import Space

__all__ = ["Improvement", "log_h"]

Array = NDArray[np.float64]

_STEP = 1e-5  # of a unit, for a slope
_MARGIN = 0.1  # of the noise's deviation: an improvement below it would not be seen
_BELIEVED = 1e-6  # noise of what is believed
_FAR = -1.0  # below it, h is written as a difference of what would cancel
_FARTHER = -1e3  # below it, the first term of a series does
_HALF_LOG_2PI = 0.5 * float(np.log(2.0 * np.pi))


class Improvement(Climber):
    """The acquisition of one ask: posteriors of the objectives, their targets and weights, and rows believed in.

    Each of `factors` gives the logarithm [rows] of something by which the improvement at rows is multiplied.
    """

    def __init__(
        self,
        space: Space,
        embedding: Embedding,
        posteriors: Sequence[Posterior],
        targets: Array,
        weights: Array,
        *,
        factors: Sequence[Callable[[Array], Array]] = (),
    ) -> None:
        super().__init__(space, embedding)
        self._factors = factors
        self._posteriors = list(posteriors)
        self._weights = weights
        self._alphas = [p.coefficients(y) for p, y in zip(posteriors, targets, strict=True)]
        noise = np.array([p.hyperparameters.noise for p in posteriors])
        self.means: Array = weights @ (targets - noise[:, None] * np.stack(self._alphas))  # at the told rows
        self._margin = _MARGIN * float(np.sqrt(weights**2 @ noise))
        self._best = float(self.means.min()) - self._margin

    def believe(self, rows: Array) -> None:
        """Take pending points as told at their posterior mean (kriging believer): only the deviation falls.

        They are believed without noise, or a noisy study would propose the same place until a result is back.
        """
        if len(rows):
            points = self._embedding(rows)
            # What is believed may be the new best: an improvement over it is what the next trial is for.
            self._best = min(self._best, float(self._predict(points)[0].min()) - self._margin)
            self._posteriors = [posterior.append(points, _BELIEVED) for posterior in self._posteriors]

    def predict(self, rows: Array) -> Array:
        """Return the logarithm of the expected improvement [1, rows]."""
        mean, variance = self._predict(self._embedding(rows))
        deviation = np.sqrt(variance)
        scores = log_h((self._best - mean) / deviation) + np.log(deviation)
        return np.asarray(scores + self._weigh(rows))[None, :]

    def descent(
        self, units: Array, point: Array, places: NDArray[np.intp], row: Array, columns: NDArray[np.intp]
    ) -> tuple[float, Array]:
        """Return minus the score and its gradient by some units of a point."""
        from scipy.special import log_ndtr

        point[places] = units
        mean = variance = 0.0
        slope, spread = np.zeros(len(places)), np.zeros(len(places))
        for weight, posterior, alpha in zip(self._weights, self._posteriors, self._alphas, strict=True):
            m, v, dm, dv = posterior.predict_with_gradient(alpha, point)
            mean += weight * m
            variance += weight**2 * v
            slope += weight * dm[places]
            spread += weight**2 * dv[places]
        # Chain rule through u = (best - mean) / deviation, for log h(u) + log deviation.
        deviation = variance**0.5
        spread /= 2.0 * deviation
        u = (self._best - mean) / deviation
        value = float(log_h(np.array([u]))[0])
        rise = float(np.exp(log_ndtr(u) - value))  # of log h, by u
        gradient = rise * (-slope - u * spread) / deviation + spread / deviation
        value += float(np.log(deviation))
        if self._factors:
            # They have no gradient of their own: one small step along each column.
            rows = np.repeat(row[None, :], len(units) + 1, axis=0)
            rows[:, columns] = units
            rows[np.arange(len(units)), columns] += _STEP
            *stepped, here = self._weigh(rows)
            value += float(here)
            gradient += (np.array(stepped) - here) / _STEP
        return -value, -gradient

    def _weigh(self, rows: Array) -> Array:
        return np.sum([factor(rows) for factor in self._factors], axis=0) if self._factors else np.zeros(len(rows))

    def _predict(self, points: Array) -> tuple[Array, Array]:
        mean, variance = np.zeros(len(points)), np.zeros(len(points))
        for weight, posterior, alpha in zip(self._weights, self._posteriors, self._alphas, strict=True):
            m, v = posterior.predict(alpha, points)
            mean += weight * m
            variance += weight**2 * v
        return mean, variance


def log_h(u: Array) -> Array:
    """Return log(pdf(u) + u cdf(u)) of the normal law, exact to rounding for all u."""
    from scipy.special import erfcx, ndtr

    # Close to 0 the definition is exact; far below, its two terms would cancel.
    near = np.maximum(u, _FAR)
    density = np.exp(-0.5 * near * near - _HALF_LOG_2PI)
    close = np.log(density + near * ndtr(near))
    far = np.minimum(u, _FAR)
    # h = pdf (1 - |u| R), R the ratio of Mills, sqrt(pi / 2) erfcx(|u| / sqrt 2); far out 1 - |u| R is 1 / u^2.
    left = np.maximum(1.0 - (0.5 * np.pi) ** 0.5 * erfcx(-far / 2.0**0.5) * -far, 1e-15)
    left = np.where(far < _FARTHER, -2.0 * np.log(-far), np.log(left))
    scores: Array = np.where(u > _FAR, close, -0.5 * far * far - _HALF_LOG_2PI + left)
    return scores
