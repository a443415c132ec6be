"""Computes expected improvement, the acquisition of Gaussian processes: its logarithm, and its climb.

One objective: log EI = log h((best - mean) / deviation) + log deviation, h(u) = pdf(u) + u cdf(u), in the form of Ament
et al. (arXiv 2310.20708) that keeps its digits far below zero. Several objectives count by the greatest of their
weighted distances from an ideal point (the Chebyshev scalarisation of Knowles, IEEE TEVC 10, 2006), which finds hollow
fronts as well as bulging ones: with independent objectives the expected improvement is an integral in one variable.
Every bound multiplies by the chance that it is kept (Gelbart et al., arXiv 1403.5607).
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.pareto import non_dominated
from trainwright.search.bayes.candidates import make_legal
from trainwright.search.bayes.gaussian_process import Embedding, Posterior
from trainwright.search.bayes.loop import Acquisition
from trainwright.space import Space

__all__ = ["Climber", "ExpectedImprovement", "log_h"]

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


_STEP = 1e-5  # of a unit, for a slope
_MARGIN = 0.1  # of the noise's deviation: an improvement below it would not be seen
_KNOWN = (0.25, 2.0)  # of the noise's variance: below it a trial shows little, where it begins and at its end
_BELIEVED = 1e-6  # noise of what is believed
_FAR = -1.0  # below it, h is written as a difference of what would cancel
_FARTHER = -1e3  # below it, the first term of a series does
_HALF_LOG_2PI = 0.5 * float(np.log(2.0 * np.pi))
_LEAST_WEIGHT = 1e-3  # of an objective: none is forgotten
_BEYOND = 0.3  # of the front's range: where the ideal point lies beyond the least losses, so that a front grows wider
_NODES, _NEAR, _WIDE = 32, 1e-3, 5.0  # of the integral: their number, the first and the last in deviations


class ExpectedImprovement(Climber):
    """The acquisition of one ask: posteriors of objectives and constraints, their targets, and rows believed in.

    `weights` [objectives] make one figure of the objectives, `bounds` [objectives and constraints] (inf = none) are on
    the scale of the targets. Each of `factors` gives the logarithm [rows] of something by which the improvement at rows
    is multiplied.
    """

    def __init__(
        self,
        space: Space,
        embedding: Embedding,
        posteriors: Sequence[Posterior],
        targets: Array,
        *,
        weights: Array,
        bounds: Array,
        factors: Sequence[Callable[[Array], Array]] = (),
    ) -> None:
        super().__init__(space, embedding)
        self._factors = factors
        self._posteriors = list(posteriors)
        self._objectives = len(weights)
        self._limited = np.flatnonzero(np.isfinite(bounds))
        self._bounds = bounds
        self._alphas = [p.coefficients(y) for p, y in zip(posteriors, targets, strict=True)]
        self._noise = noise = np.array([p.hyperparameters.noise for p in posteriors])
        means = targets - noise[:, None] * np.stack(self._alphas)  # at the told rows
        over = np.maximum(0.0, means - bounds[:, None]).sum(axis=0)
        self._legal = bool((over <= 0.0).any())
        losses = means[: self._objectives]
        self._ideal, self._weights = np.zeros(len(weights)), weights
        if len(weights) > 1:
            # Distances count as shares of the front's own range, or the rows far from it would set the scale.
            front = losses[:, over <= 0.0] if self._legal else losses
            front = front[:, non_dominated(front.T)]
            ranges = np.ptp(front, axis=1)
            ranges[ranges <= 0.0] = 1.0
            self._ideal = front.min(axis=1) - _BEYOND * ranges
            self._weights = np.maximum(weights, _LEAST_WEIGHT) / ranges
        figures = self._scalarise(losses)
        self.order = np.lexsort((figures, over))  # best first, by what the processes say
        self._margin = _MARGIN * float((self._weights * noise[: self._objectives] ** 0.5).max())
        self._best = float(figures[over <= 0.0].min()) - self._margin if self._legal else np.inf

    def believe_pending(self, rows: Array) -> None:
        """Take pending points as told at their posterior mean (kriging believer, no constant liar).

        Only the deviation falls. They are believed without noise, or a noisy study would propose the same place until a
        result is back.
        """
        if len(rows):
            points = self._embedding(rows)
            # What is believed may be the new best: an improvement over it is what the next trial is for.
            means, _ = self._predict(points)
            kept = (means <= self._bounds[:, None]).all(axis=0)
            if self._legal and kept.any():
                figures = self._scalarise(means[: self._objectives])
                self._best = min(self._best, float(figures[kept].min()) - self._margin)
            self._posteriors = [posterior.append(points, _BELIEVED) for posterior in self._posteriors]

    def is_known(self, row: Array, first: float) -> bool:
        """Whether a trial of a row [columns] would show little, at the fidelity `first` where it begins and at its end.

        Where it begins, objectives and constraints are known as if from several results of it; at its end about as if
        from one.
        """
        _, variances = self._predict(self._embedding(np.stack([row, row]), np.array([first, 1.0])))
        return bool((variances / self._noise[:, None] < _KNOWN).all())

    def predict(self, rows: Array) -> Array:
        """Return the logarithm of the expected improvement [1, rows]."""
        means, variances = self._predict(self._embedding(rows))
        scores, _, _ = self._gain(means, variances)
        return np.asarray(scores + self._weigh(rows))[None, :]

    def descent(
        self, units: Array, point: Array, places: NDArray[np.intp], row: Array, columns: NDArray[np.intp]
    ) -> tuple[float, Array]:
        """Return minus the score and its gradient by some units of a point."""
        point[places] = units
        told = [p.predict_with_gradient(alpha, point) for p, alpha in zip(self._posteriors, self._alphas, strict=True)]
        means, variances, mean_slopes, variance_slopes = (np.array(found) for found in zip(*told, strict=True))
        found, by_mean, by_variance = self._gain(means[:, None], variances[:, None])
        value = float(found[0])
        # Chain rule through the mean and the variance of each outcome.
        gradient: Array = by_mean[:, 0] @ mean_slopes[:, places] + by_variance[:, 0] @ variance_slopes[:, places]
        if self._factors:
            # They have no gradient of their own: one small step along each column.
            rows = np.repeat(row[None, :], len(units) + 1, axis=0)
            rows[:, columns] = units
            rows[np.arange(len(units)), columns] += _STEP
            *stepped, here = self._weigh(rows)
            value += float(here)
            gradient += (np.array(stepped) - here) / _STEP
        return -value, -gradient

    def _scalarise(self, losses: Array) -> Array:
        """Return the greatest weighted distance [rows] of losses [objectives, rows] from the ideal point."""
        found: Array = (self._weights[:, None] * (losses - self._ideal[:, None])).max(axis=0)
        return found

    def _gain(self, means: Array, variances: Array) -> tuple[Array, Array, Array]:
        """Return the logarithm of the gain [rows], and its slopes by means and variances [outcomes, rows]."""
        from scipy.special import log_ndtr

        m = self._objectives
        deviations = np.sqrt(variances)
        value, by_mean, by_deviation = np.zeros(means.shape[1]), np.zeros_like(means), np.zeros_like(means)
        # Where nothing is legal yet, whatever is counts alike.
        if self._legal:
            improve = _log_expected_improvement if m == 1 else self._log_improvement_of_several
            value, by_mean[:m], by_deviation[:m] = improve(self._best, means[:m], deviations[:m])
        for j in self._limited.tolist():
            u = (self._bounds[j] - means[j]) / deviations[j]
            chance = log_ndtr(u)
            rise = np.exp(-0.5 * u * u - _HALF_LOG_2PI - chance) / deviations[j]
            value = value + chance
            by_mean[j] -= rise
            by_deviation[j] -= rise * u
        return value, by_mean, 0.5 * by_deviation / deviations

    def _log_improvement_of_several(self, best: float, means: Array, deviations: Array) -> tuple[Array, Array, Array]:
        """Return the logarithm of the expected improvement of the greatest distance, and its slopes.

        E max(0, best - g) is the integral of P(g <= best - s) over s > 0; with independent objectives P is a product.
        """
        from scipy.special import log_ndtr, logsumexp

        # Nodes are even in the logarithm of s, since far from the best P falls steeply with s.
        w = self._weights[:, None]
        spread = (w * deviations).max(axis=0)
        reach = np.maximum(0.0, best - self._scalarise(means)) + _WIDE * spread
        steps = np.linspace(np.log(_NEAR * spread), np.log(reach), _NODES)  # [nodes, rows]
        t = best - np.exp(steps)
        u = (t[None] / w[:, :, None] + self._ideal[:, None, None] - means[:, None, :]) / deviations[:, None, :]
        chance = log_ndtr(u)
        terms = chance.sum(axis=0) + steps
        value = logsumexp(terms, axis=0)
        share = np.exp(terms - value)
        rise = share * np.exp(-0.5 * u * u - _HALF_LOG_2PI - chance) / deviations[:, None, :]
        return value + np.log(steps[1] - steps[0]), -rise.sum(axis=1), -(rise * u).sum(axis=1)

    def _weigh(self, rows: Array) -> Array:
        return np.sum([factor(rows) for factor in self._factors], axis=0) if self._factors else np.zeros(len(rows))

    def _predict(self, points: Array) -> tuple[Array, Array]:
        """Return means and variances [outcomes, points]."""
        told = [p.predict(alpha, points) for p, alpha in zip(self._posteriors, self._alphas, strict=True)]
        return np.stack([mean for mean, _ in told]), np.stack([variance for _, variance in told])


def _log_expected_improvement(best: float, means: Array, deviations: Array) -> tuple[Array, Array, Array]:
    """Return log EI, and its slopes by mean and deviation, each with one row."""
    from scipy.special import log_ndtr

    u = (best - means[0]) / deviations[0]
    logs = log_h(u)
    rise = np.exp(log_ndtr(u) - logs)  # of log h, by u
    return (
        logs + np.log(deviations[0]),
        -(rise / deviations[0])[None, :],
        ((1.0 - rise * u) / deviations[0])[None, :],
    )


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
