"""The posterior of a learning curve's end, by importance draws in rounds, family by family.

y_i ~ StudentT(4, f(z_i), sigma), sigma half-normal(1), parameters normal. Given the shape (p, q) a curve is linear in a
and b; so only the shape is drawn from proposals that adapt (population Monte Carlo, Cappe et al., 2004), then b, a and
sigma each from a t distribution around their least-squares values given what was drawn before. Draws are judged by the
Pareto k of their weights (Vehtari et al., JMLR 25 (2024)).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.schedule._families import Family, Grid

__all__ = ["Curve", "Noise", "Posterior", "Prior", "best_fit", "pareto_k", "posterior"]

Array = NDArray[Any]  # of either precision

_ROUNDS = (192, 192, 192)  # draws to find where the shape is, before those that count
_DRAWS = 2048
_NU = 5.0  # degrees of freedom of proposals
_LOG_T = -0.9686195890547249  # log density of their centre, in one dimension
_LEAST = 0.01  # scaled: no curve is believed to follow a family more exactly than this


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard draws that all families and rounds share: t [3, S], and normal [S, 2] with heavier tails."""

    standard: Array
    normal: Array

    @classmethod
    def of(cls, generator: np.random.Generator) -> "Noise":
        """Draw them."""
        heavy = np.sqrt(_NU / generator.chisquare(_NU, (_DRAWS, 1)))
        return cls(generator.standard_t(_NU, (3, _DRAWS)), generator.standard_normal((_DRAWS, 2)) * heavy)


@dataclass(frozen=True, slots=True)
class Prior:
    """Normal over the parameters (a, b, log p, log q) that a family uses."""

    mean: Array
    covariance: Array

    @classmethod
    def broad(cls, family: Family) -> "Prior":
        """Return N(0, 2^2) for each."""
        size = 2 + family.used
        return cls(np.zeros(size), 4.0 * np.eye(size))

    def log_density(self, theta: Array) -> Array:
        """Return log densities of rows [S, size]."""
        root = np.linalg.cholesky(self.covariance)
        square = (np.linalg.solve(root, (theta - self.mean).T) ** 2).sum(axis=0)
        found: Array = -0.5 * (square + self.mean.size * np.log(2 * np.pi)) - np.log(np.diagonal(root)).sum()
        return found


@dataclass(frozen=True, slots=True)
class Curve:
    """The reported points of one trial, in scaled units."""

    grid: Grid
    values: Array


@dataclass(frozen=True, slots=True)
class _Cloud:
    """Draws of one family: parameters [S, 2 + used], log sigma [S], and log weights [S]; `trust` in points [n]."""

    theta: Array
    log_sigma: Array
    log_weights: Array
    trust: Array  # 5 / (4 + r^2) of the best draw: what the t distribution makes of outliers

    @property
    def weights(self) -> Array:
        """Relative to the greatest."""
        found: Array = np.exp(self.log_weights - self.log_weights.max())
        return found

    @property
    def evidence(self) -> float:
        """The logarithm of the mean weight."""
        return float(self.log_weights.max() + np.log(self.weights.mean()))

    @property
    def sound(self) -> bool:
        """Whether the weights can be trusted."""
        weights = self.weights
        total = weights.sum()
        return bool(np.isfinite(total)) and total**2 >= 100 * (weights**2).sum() and pareto_k(weights) <= 0.7


@dataclass(frozen=True, slots=True)
class _Shape:
    """A mixture of t distributions for (log p, log q): means [C, used], roots [C, used, used], shares [C]."""

    means: Array
    roots: Array
    shares: Array

    def draw(self, noise: Noise, count: int) -> tuple[Array, Array]:
        """Return shapes [S, used] and their log densities [S]."""
        size = self.means.shape[1]
        if not size:
            return np.zeros((count, 0)), np.zeros(count)
        parts = np.searchsorted(np.cumsum(self.shares)[:-1], np.arange(count) * 0.6180339887498949 % 1.0)
        drawn = self.means[parts] + np.einsum("sij,sj->si", self.roots[parts], noise.normal[:count, :size])
        densities = np.zeros(count)
        for mean, root, share in zip(self.means, self.roots, self.shares, strict=True):
            square = (np.linalg.solve(root, (drawn - mean).T) ** 2).sum(axis=0)
            # t in one or two dimensions, without the constant that all parts share
            densities += share / np.abs(np.linalg.det(root)) * (1 + square / _NU) ** (-0.5 * (_NU + size))
        constant = _LOG_T if size == 1 else -np.log(2 * np.pi)
        return drawn, np.log(densities) + constant


def _mixed(parts: Sequence[tuple[int, Array, Array]], standard: Array, turn: int) -> tuple[Array, Array]:
    """Return draws from mixtures of t distributions, each draw's own, and their log densities.

    `parts` are (share, location, scale), shares in whole numbers. They are taken in turns of `turn` draws, so that all
    combinations of the parts of several mixtures occur.
    """
    shares = np.array([share for share, _, _ in parts])
    rows = np.arange(standard.size)
    chosen = np.repeat(np.arange(len(parts)), shares)[rows // turn % shares.sum()]
    places = np.empty((len(parts), standard.size))
    scales = np.empty_like(places)
    for part, (_, place, scale) in enumerate(parts):
        places[part], scales[part] = place, scale
    drawn = places[chosen, rows] + scales[chosen, rows] * standard
    near = 1.0 / (1.0 + ((drawn - places) / scales) ** 2 / _NU)
    return drawn, np.log((shares / shares.sum()) @ (near * near * near / scales)) + _LOG_T


def _regressed(g: Array, y: Array, weights: Array) -> tuple[Array, float, Array, Array, Array]:
    """Return weighted means of g [S] and y, slope [S], sum of squares of g [S] and what the line leaves [S]."""
    w = weights.astype(g.dtype)
    total = float(w.sum())
    mean_g, mean_y = (g @ w) / total, (y @ w) / total
    centred = g - mean_g[:, None]
    product = (centred @ (w * (y - mean_y))).astype(np.float64)
    square = np.maximum((np.square(centred, out=centred) @ w).astype(np.float64), 1e-12)
    slope = product / square
    left = np.maximum(float(w @ (y - mean_y) ** 2) - slope * product, 0.0)
    return mean_g.astype(np.float64), float(mean_y), slope, square, left


def _cloud(
    family: Family, curve: Curve, prior: Prior, shape: _Shape, noise: Noise, *, count: int, trust: Array
) -> _Cloud:
    """Draw shapes from `shape`, the rest given the shape, and weigh.

    Given the shape: b around its least-squares value with all points, around that with each point's trust, and around
    the prior; then a, and sigma, likewise with all points and with trust.
    """
    y, n = curve.values, curve.values.size
    shapes, proposal = shape.draw(noise, count)
    padded = np.zeros((count, 2), y.dtype)
    padded[:, : shapes.shape[1]] = shapes
    g = np.clip(family.shape(padded[:, :1], padded[:, 1:], curve.grid), -1e6, 1e6)  # a copy: it is worked on in place
    fits = [_regressed(g, y, weights) for weights in (np.ones(n), trust)]
    mean, own = prior.mean, 1.0 / np.diag(prior.covariance)
    parts = [(1, mean[1:2], own[1:2] ** -0.5)]
    for share, (_, _, slope, square, left) in zip((1, 4), fits, strict=True):
        error = (np.sqrt(left / max(n - 2, 1)) + _LEAST) / np.sqrt(square)
        if family.positive:  # of log b; a slope below its error says only that b is less than that
            weak = slope < 2.0 * error
            known = np.where(weak, 0.7, (np.maximum(slope, error) / error) ** 2)
            fitted = np.log(np.where(weak, error, np.maximum(slope, error)))
            near = np.where(
                weak, np.minimum(fitted - 0.7, mean[1]), (known * fitted + own[1] * mean[1]) / (known + own[1])
            )
        else:
            known = error**-2.0
            near = (known * slope + own[1] * mean[1]) / (known + own[1])
        parts.append((share, near, 1.2 * (known + own[1]) ** -0.5))
    second, density = _mixed(parts, noise.standard[0, :count], 1)
    proposal = proposal + density
    b = np.exp(second) if family.positive else second
    places, scales = [], []
    for (mean_g, mean_y, slope, square, left), total in zip(fits, (float(n), float(trust.sum())), strict=True):
        known = total / (np.sqrt((left + (b - slope) ** 2 * square) / max(n - 1, 1)) + _LEAST) ** 2
        places.append((known * (mean_y - b * mean_g) + own[0] * mean[0]) / (known + own[0]))
        scales += [1.2 * (known + own[0]) ** -0.5]
    parts = [(3, places[1], scales[1]), (1, places[1], np.maximum(scales[0], 3.0 * scales[1]))]
    first, density = _mixed(parts, noise.standard[1, :count], 6)
    proposal = proposal + density
    g *= -b[:, None].astype(g.dtype)
    g += y
    g -= first[:, None].astype(g.dtype)
    np.square(g, out=g)
    widths = [(g @ weights.astype(g.dtype) / n).astype(np.float64) for weights in (np.ones(n), trust)]
    bounds = [np.maximum(width - _LEAST**2, _LEAST**2 / n) for width in widths]
    places = [-0.5 * np.log(1.0 / bound + 1.0 / n) for bound in bounds]  # the half-normal bounds it too
    scale = np.minimum(1.1 / np.sqrt(n) * np.maximum(widths[1], _LEAST**2) / bounds[1], 1.0)
    wide = 0.5 * np.abs(places[0] - places[1]) + np.maximum(1.5 / np.sqrt(n), scale)
    parts = [(2, places[1], scale), (1, 0.5 * (places[0] + places[1]), wide)]
    log_sigma, density = _mixed(parts, noise.standard[2, :count], 24)
    proposal = proposal + density
    variance = np.exp(2.0 * log_sigma) + _LEAST**2
    g *= (0.25 / variance)[:, None].astype(g.dtype)
    likelihood = -2.5 * np.log1p(g).sum(axis=1, dtype=np.float64) - 0.5 * n * np.log(variance)
    theta = np.column_stack([first, second, shapes])
    density = likelihood + prior.log_density(theta) - 0.5 * np.exp(2 * log_sigma) + log_sigma
    density = np.where(np.isfinite(density), density, -1e30)
    best = np.argmax(density)
    log_weights = np.where(np.isfinite(proposal), density - proposal, -1e30)
    return _Cloud(theta, log_sigma, log_weights, 5.0 / (4.0 + 4.0 * np.nan_to_num(g[best].astype(np.float64))))


def _adapted(cloud: _Cloud, prior: Prior, count: int) -> _Shape:
    """Return the mixture for the next round: where the draws were good, and a tenth of the prior."""
    shapes, used = cloud.theta[:, 2:], cloud.theta.shape[1] - 2
    wide = np.linalg.cholesky(prior.covariance)[2:, 2:]
    if not used:
        return _Shape(prior.mean[None, 2:], wide[None], np.ones(1))
    temper, weights = 1.0, cloud.weights
    while weights.sum() ** 2 < min(25.0, 0.2 * count) * (weights**2).sum() and temper > 1e-3:  # not from too few
        temper *= 0.7
        weights = np.exp(temper * (cloud.log_weights - cloud.log_weights.max()))
    weights = weights / weights.sum()
    mean = weights @ shapes
    gap = shapes - mean
    covariance = (weights[:, None] * gap).T @ gap + 1e-6 * np.eye(used)
    root = np.linalg.cholesky(covariance)
    return _Shape(np.stack([mean, mean, prior.mean[2:]]), np.stack([root, 2.0 * root, wide]), np.array([0.6, 0.3, 0.1]))


def _search(family: Family, curve: Curve, prior: Prior, noise: Noise) -> tuple[_Cloud, _Shape]:
    """Return the last of the rounds that find where the shape is, and the mixture to draw from next."""
    wide = np.linalg.cholesky(prior.covariance)[2:, 2:]
    shape = _Shape(prior.mean[None, 2:], wide[None], np.ones(1))
    late = curve.values[curve.values.size // 2 :].astype(np.float64)  # a flat end, with whatever was before as outliers
    gap = curve.values - np.median(late)
    trust = 5.0 / (4.0 + (gap / (1.5 * np.median(np.abs(late - np.median(late))) + _LEAST)) ** 2)
    for count in _ROUNDS:
        cloud = _cloud(family, curve, prior, shape, noise, count=count, trust=trust)
        shape, trust = _adapted(cloud, prior, count), cloud.trust
    return cloud, shape


def _draws(family: Family, curve: Curve, prior: Prior, noise: Noise) -> _Cloud:
    """Return the draws that count; drawn once more if they are unsound."""
    cloud, shape = _search(family, curve, prior, noise)
    for _ in range(2):
        cloud = _cloud(family, curve, prior, shape, noise, count=_DRAWS, trust=cloud.trust)
        if cloud.sound:
            break
        shape = _adapted(cloud, prior, _DRAWS)
    return cloud


def best_fit(family: Family, curve: Curve, generator: np.random.Generator) -> Array:
    """Return the mean of the parameters under the broad prior."""
    with np.errstate(all="ignore"):
        cloud, _ = _search(family, curve, Prior.broad(family), Noise.of(generator))
    found: Array = cloud.weights @ cloud.theta / cloud.weights.sum()
    return found


@dataclass(frozen=True, slots=True)
class Posterior:
    """Draws of f at the end [S], with weights that sum to 1, and their sigmas."""

    ends: Array
    sigmas: Array
    weights: Array

    def above(self, loss: float) -> float:
        """Return P(f(R) >= loss)."""
        return float(self.weights[self.ends >= loss].sum())


def posterior(
    families: Sequence[Family], curve: Curve, priors: Sequence[Prior], end: Grid, seed: np.random.Generator
) -> Posterior | None:
    """Return the posterior of the curve at `end`, families mixed by their evidence; None if none is sound."""
    light = Curve(curve.grid.single(), curve.values.astype(np.float32))
    noise = Noise.of(seed)
    ends, sigmas, weights, evidence = [], [], [], []
    with np.errstate(all="ignore"):
        for family, prior in zip(families, priors, strict=True):
            cloud = _draws(family, light, prior, noise)
            if not cloud.sound:
                continue
            padded = np.zeros((_DRAWS, 4))
            padded[:, : cloud.theta.shape[1]] = cloud.theta
            ends.append(family.curve(padded, end)[:, 0])
            sigmas.append(np.exp(cloud.log_sigma))
            weights.append(cloud.weights / cloud.weights.sum())
            evidence.append(cloud.evidence)
        if not ends:
            return None
        shares = np.exp(np.array(evidence) - max(evidence))
        mixed = np.concatenate([w * share for w, share in zip(weights, shares / shares.sum(), strict=True)])
        values = np.concatenate(ends)
    mixed[~np.isfinite(values)] = 0.0
    return Posterior(values, np.concatenate(sigmas), mixed / mixed.sum())


def pareto_k(weights: Array) -> float:
    """Return the shape of the generalised Pareto tail of importance weights (Zhang and Stephens, 2009)."""
    count = int(min(0.2 * len(weights), 3 * np.sqrt(len(weights))))
    tail = np.partition(weights, len(weights) - count - 1)[-count - 1 :]
    tail.sort()
    x = tail[1:] - tail[0]
    if not x[-1] > 0:
        return np.inf
    x = np.maximum(x, x[-1] * 1e-15)
    m = 30 + int(np.sqrt(count))
    b = 1 / x[-1] + (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (3 * x[count // 4])
    k = np.log1p(-b[:, None] * x).mean(axis=1)
    likelihood = count * (np.log(-b / k) - k - 1)
    share = 1 / np.exp(likelihood - likelihood[:, None]).sum(axis=1)
    best = (b * share / share.sum()).sum()
    found = np.log1p(-best * x).mean()
    return float((found * count + 0.5 * 10) / (count + 10))
