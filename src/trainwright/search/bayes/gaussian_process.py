"""The Gaussian process surrogate: fits a Matern-5/2 kernel with one length scale per column, and noise, and predicts.

k(x, x') = s (1 + r + r^2 / 3) exp(-r), r^2 = 5 sum_c D_c(x, x') / l_c^2, D_c the squared distance in column c
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006). Length scales have a prior
that grows with the root of the dimension (Hvarfner et al., arXiv 2402.02229), so that wide spaces start smooth; its
middle is shorter than theirs, which found more on test functions and tables.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.space import Space

__all__ = ["Embedding", "Hyperparameters", "Posterior", "correlation", "fit_hyperparameters", "negative_log_posterior"]


_INACTIVE_OFFSET = 0.5  # distance from the middle of a unit column to where it is inactive
_LENGTH = (0.0, 3.0**0.5)  # mean and deviation of the prior of ln l - ln(d) / 2, of targets of deviation 1
_SIGNAL, _NOISE = (0.0, 1.0), (-10.0, 2.0)  # those of ln s and ln noise
_BOUNDS = ((-4.0, 7.0), (-4.0, 4.0), (np.log(1e-6), 0.0))  # of ln l, ln s, ln noise
_STARTS = 4
_SHORT, _LONG = 6, 40  # steps of each start, and of the best of them
_FEW = 12  # steps for a part of what was fitted before


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Hyperparameters:
    """What is fitted; one length scale per column."""

    lengths: Array
    signal: float
    noise: float


class Embedding:
    """The map from rows of a space to points: units, codes as one-hot, and a place of its own for what is inactive.

    A choice has distance 1 between any two of its values, being inactive one of them. A unit column is its unit; one
    that can be inactive then is its middle, lifted off the line by a second feature. With `fidelity` a last column.
    """

    def __init__(self, space: Space, *, fidelity: bool) -> None:
        self._units: list[int] = []
        self._gaps: list[int] = []
        self._choices: list[tuple[int, NDArray[np.float64]]] = []
        for c, column in enumerate(space.columns):
            if column.kind == "choice":
                self._choices.append((c, np.arange((column.points or 0) + 1.0)))
            else:
                self._units.append(c)
                if space.parameters[column.name].when is not None:
                    self._gaps.append(c)
        ones = [c for c, codes in self._choices for _ in codes]
        last = [space.dimension] * fidelity
        self.owners = np.array([*self._units, *self._gaps, *ones, *last])  # the column of each feature
        self.unit_of = {c: place for place, c in enumerate(self._units)}  # the feature of each unit column

    def __call__(self, rows: Array, fidelity: Array | None = None) -> Array:
        """Return points [rows, features]; `fidelity` z [rows], 1 if not given, where the embedding has it."""
        # One block of features for each kind of column: units, lifts of inactive ones, one-hot codes, fidelity.
        points = np.empty((len(rows), len(self.owners)))
        points[:, : len(self._units)] = rows[:, self._units]
        if self._gaps:
            # An inactive unit must be as far from all active values, so it leaves their line.
            lifted = slice(len(self._units), len(self._units) + len(self._gaps))
            points[:, lifted] = _INACTIVE_OFFSET * np.isnan(rows[:, self._gaps])
            np.copyto(points, 0.5, where=np.isnan(points))
        at = len(self._units) + len(self._gaps)
        for c, codes in self._choices:
            row_codes = np.where(np.isnan(rows[:, c]), codes[-1], rows[:, c])
            points[:, at : at + len(codes)] = np.where(row_codes[:, None] == codes, 0.5**0.5, 0.0)
            at += len(codes)
        if at < points.shape[1]:
            points[:, at] = 1.0 if fidelity is None else fidelity
        return points


def correlation(squares: Array) -> tuple[Array, Array]:
    """Return the correlation of points at squared distances, and its derivative by the squared distance."""
    r = np.sqrt(5.0 * squares)
    decay = np.exp(-r)
    slopes = r + 1.0
    slopes *= decay
    # (1 + r + r^2 / 3) exp(-r), with the two first terms shared.
    r *= r
    r *= decay
    r *= 1.0 / 3.0
    r += slopes
    slopes *= -5.0 / 6.0
    return r, slopes


def negative_log_posterior(theta: Array, points: Array, owners: NDArray[np.intp], y: Array) -> tuple[float, Array]:
    """Return minus the log marginal likelihood and log prior of theta = [ln l, ln s, ln noise], and its gradient."""
    from scipy.linalg import lapack

    d, n = len(theta) - 2, len(y)
    signal, noise = np.exp(theta[-2:])
    Z = points / np.exp(theta[:-2])[owners]
    # Scaled first, so that one product of matrices gives all squared distances.
    C, slopes = correlation(_squares(Z, Z))
    C *= signal
    slopes *= signal
    # K = signal * correlation + noise * I, factorised once for the likelihood and its gradient.
    K = C.copy()
    K.flat[:: n + 1] += noise
    L, failed = lapack.dpotrf(K, lower=1)
    if failed:
        return np.inf, np.zeros_like(theta)
    # The gradient needs the inverse itself, which LAPACK makes from the factor.
    inverse, _ = lapack.dpotri(L, lower=1)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    alpha = inverse @ y
    # Gradient of the negative log-likelihood: 1/2 tr((K^-1 - alpha alpha') dK).
    A = inverse - np.outer(alpha, alpha)
    W = A * slopes
    gradient = np.empty_like(theta)
    # The derivative by a length is a sum over pairs, written as two products so that no n x n x d array is made.
    moments = W.sum(axis=1) @ (Z * Z) - (Z * (W @ Z)).sum(axis=0)
    gradient[:-2] = -2.0 * np.bincount(owners, moments, d)
    gradient[-2] = 0.5 * np.vdot(A, C)
    gradient[-1] = 0.5 * noise * np.trace(A)
    loss = 0.5 * float(y @ alpha) + float(np.log(L.diagonal()).sum())
    # The priors make it a posterior: with few trials the likelihood alone prefers no length at all.
    mean, deviation = _prior(d)
    offset = (theta - mean) / deviation
    return loss + 0.5 * float(offset @ offset), gradient + offset / deviation


def fit_hyperparameters(
    points: Array,
    owners: NDArray[np.intp],
    y: Array,
    generator: np.random.Generator,
    *,
    like: Hyperparameters | None = None,
) -> Hyperparameters:
    """Fit the hyperparameters: the largest marginal likelihood and prior, for `y` of deviation about 1, by L-BFGS.

    For a part of points that were fitted before, `like` has their signal and noise, from which fewer steps will do.
    """
    from scipy.optimize import minimize

    d = int(owners.max()) + 1
    mean, deviation = _prior(d)
    bounds = [_BOUNDS[0]] * d + [_BOUNDS[1], _BOUNDS[2]]
    low, high = np.array(bounds).T
    first = mean.copy()
    first[:d] = np.log(0.5) + 0.5 * np.log(d)

    def descend(start: Array, steps: int) -> tuple[float, Array]:
        found = minimize(
            negative_log_posterior, start, args=(points, owners, y), jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": steps},
        )  # fmt: skip
        return float(found.fun), found.x

    if like is not None:
        first[d:] = np.log([like.signal, like.noise])
        return _named(descend(np.clip(first, low, high), _FEW)[1])
    # The likelihood has several maxima: a few steps from each start, then more from the best of them.
    starts = [first, *(mean + 0.5 * deviation * generator.standard_normal((_STARTS - 1, d + 2)))]

    _, best = min((descend(np.clip(start, low, high), _SHORT) for start in starts), key=lambda found: found[0])
    _, theta = descend(best, _LONG)
    return _named(theta)


def _named(theta: Array) -> Hyperparameters:
    return Hyperparameters(lengths=np.exp(theta[:-2]), signal=float(np.exp(theta[-2])), noise=float(np.exp(theta[-1])))


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """The factor L of the covariance of told points; targets are given with each question, so they may be rescaled."""

    hyperparameters: Hyperparameters
    owners: NDArray[np.intp]
    points: Array
    factor: Array  # lower triangle

    @classmethod
    def of(cls, hyperparameters: Hyperparameters, points: Array, owners: NDArray[np.intp]) -> "Posterior":
        """Return the posterior given points."""
        empty = cls(
            hyperparameters=hyperparameters, owners=owners, points=points[:0], factor=np.empty((0, 0))
        )  # a block is appended to nothing
        return empty.append(points)

    def append(self, points: Array, noise: float | None = None) -> "Posterior":
        """Return the posterior given further points, O(n^2) each: L grows by rows, L21 = K21 L11^-T.

        `noise` is theirs, if it is not the fitted one.
        """
        from scipy.linalg import cholesky, lapack

        old, new = len(self.points), len(points)
        factor = np.zeros((old + new, old + new), order="F")  # as LAPACK wants it: no question copies it
        factor[:old, :old] = self.factor
        block = self.between(points, points)
        # Noise stands on the diagonal only: repeated points may have different results.
        block.flat[:: new + 1] += self.hyperparameters.noise if noise is None else noise
        if old:
            across, _ = lapack.dtrtrs(self.factor, self.between(self.points, points), lower=1)
            factor[old:, :old] = across.T
            # What the old points say already is taken out: the Schur complement.
            block -= across.T @ across
        factor[old:, old:] = cholesky(block, lower=True, check_finite=False)
        return Posterior(
            hyperparameters=self.hyperparameters,
            owners=self.owners,
            points=np.concatenate([self.points, points]),
            factor=factor,
        )

    def coefficients(self, y: Array) -> Array:
        """Return K^-1 y for the first len(y) points, which make the mean: those told."""
        from scipy.linalg import lapack

        n = len(y)
        solved: Array = lapack.dpotrs(self.factor[:n, :n], y, lower=1)[0]
        return solved

    def predict(self, alpha: Array, points: Array) -> tuple[Array, Array]:
        """Return mean and variance, without noise, at points; `alpha` of the first points, the variance given all."""
        from scipy.linalg import lapack

        across = self.between(self.points, points)
        seen, _ = lapack.dtrtrs(self.factor, across, lower=1)
        variance = self.hyperparameters.signal - np.einsum("ij,ij->j", seen, seen)
        return alpha @ across[: len(alpha)], np.maximum(variance, 1e-12 * self.hyperparameters.signal)

    def predict_with_gradient(self, alpha: Array, point: Array) -> tuple[float, float, Array, Array]:
        """Return mean and variance at one point, and their gradients by its features."""
        from scipy.linalg import lapack

        signal = self.hyperparameters.signal
        # The same as `predict` for one point, and the derivatives by its features along the way.
        offset = point / self._scales - self._scaled
        k, slopes = correlation(np.einsum("ij,ij->i", offset, offset))
        k *= signal
        solved, _ = lapack.dpotrs(self.factor, k, lower=1)
        steps = (2.0 * signal * slopes)[:, None] * offset / self._scales
        variance = max(signal - float(k @ solved), 1e-12 * signal)
        n = len(alpha)
        return float(alpha @ k[:n]), variance, alpha @ steps[:n], -2.0 * (solved @ steps)

    def between(self, first: Array, second: Array) -> Array:
        """Return the covariance of two sets of points."""
        values, _ = correlation(_squares(first / self._scales, second / self._scales))
        values *= self.hyperparameters.signal
        return values

    @cached_property
    def _scales(self) -> Array:
        scales: Array = self.hyperparameters.lengths[self.owners]
        return scales

    @cached_property
    def _scaled(self) -> Array:
        return self.points / self._scales


def _squares(first: Array, second: Array) -> Array:
    """Return squared distances, exactly 0 of a matrix's rows from themselves."""
    ones = np.ones((len(first), 1)), np.ones((len(second), 1))
    lengths = [np.einsum("ij,ij->i", points, points)[:, None] for points in (first, second)]
    # |a|^2 - 2 a b + |b|^2 as one product.
    left = np.concatenate([-2.0 * first, lengths[0], ones[0]], axis=1)
    right = np.concatenate([second, ones[1], lengths[1]], axis=1)
    squares: Array = left @ right.T
    # Rounding may leave a small negative distance, whose root would be nan.
    np.maximum(squares, 0.0, out=squares)
    if first is second:
        squares.flat[:: len(first) + 1] = 0.0
    return squares


def _prior(d: int) -> tuple[Array, Array]:
    mean = np.array([_LENGTH[0] + 0.5 * np.log(d)] * d + [_SIGNAL[0], _NOISE[0]])
    deviation = np.array([_LENGTH[1]] * d + [_SIGNAL[1], _NOISE[1]])
    return mean, deviation
