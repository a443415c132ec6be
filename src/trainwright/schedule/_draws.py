"""Importance draws of the parameters of learning curves, in rounds, for several families at once.

Given the shape (p, q) a curve is linear in a and b; so only the shape is drawn from proposals that adapt (population
Monte Carlo, Cappe et al., 2004), then b, a and sigma each from a t distribution around their least-squares values given
what was drawn before. Arrays are [families, points, draws], in single precision: draws lie side by side in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.schedule._families import Family, Grid
from trainwright.schedule._shapes import DRAWS, NU, Array, Noise, Prior, Shape

__all__ = ["LEAST", "Cloud", "Curve", "Model", "cloud", "search"]

_ROUND = 192  # draws to find where the shape is, before those that count
_CACHED = 100_000  # numbers worked on at a time, as a cache holds them
_KERNELS = 16  # around good draws, in the mixture of the next round
_LOG_T = -0.9686195890547249  # log density of their centre in one dimension
_NEVER = np.float32(-1e30)  # log density
LEAST = 0.01  # scaled: no curve is believed to follow a family more exactly than this


@dataclass(frozen=True, slots=True)
class Curve:
    """The reported points of one trial, in scaled units."""

    grid: Grid
    values: Array


@dataclass(frozen=True, slots=True)
class Model:
    """A curve, in single precision, and what it may be a curve of."""

    families: tuple[Family, ...]
    curve: Curve
    prior: Prior
    positive: Array  # [F, 1]: whether b > 0
    unroot: Array  # [F, 4, 4]: makes the prior a standard normal
    steep: Array  # [F, 1]: the logarithm of its density at its centre
    work: Array  # reused by all draws: fresh memory costs as much as what is computed in it
    worth: float = 1.0  # of a point, when neighbours err alike

    @classmethod
    def of(cls, families: Sequence[Family], curve: Curve, prior: Prior) -> "Model":
        """Join them."""
        light = Curve(curve.grid.single(), curve.values.astype(np.float32))
        steep = np.log(np.diagonal(prior.root, axis1=1, axis2=2)).sum(axis=1, keepdims=True) + 2.0 * np.log(2.0 * np.pi)
        positive = np.array([[family.positive] for family in families])
        unroot, steep = np.linalg.inv(prior.root), -steep.astype(np.float32)
        work = np.empty((len(families) + 1) * curve.values.size * DRAWS, np.float32)
        return cls(tuple(families), light, prior, positive, unroot, steep, work)

    def only(self, rows: Array, worth: float | None = None) -> "Model":
        """Return the model of some of the families, with points of another worth if that is given."""
        chosen = tuple(self.families[row] for row in rows)
        rest = self.positive[rows], self.unroot[rows], self.steep[rows], self.work
        return Model(chosen, self.curve, self.prior.only(rows), *rest, self.worth if worth is None else worth)

    def shapes(self, pq: Array) -> Array:
        """Return g [F, n, S] of (log p, log q) [F, 2, S], until the next call."""
        shape = len(pq), self.curve.values.size, pq.shape[2]
        g = self.work[: shape[0] * shape[1] * shape[2]].reshape(shape)
        for out, family, (u, v) in zip(g, self.families, pq, strict=True):
            np.clip(family.shape(u, v, self.curve.grid), -1e6, 1e6, out=out)
        return g

    def sums(self, weights: Array, g: Array) -> tuple[Array, Array]:
        """Return weighted sums over points of g and of its squares [F, W, S], of weights [F, W, n]."""
        square = self.work[g.size : g.size + g[0].size].reshape(g[0].shape)
        squares = [mine @ np.square(here, out=square) for mine, here in zip(weights, g, strict=True)]
        return weights @ g, np.stack(squares)

    def log_likelihood(self, g: Array, first: Array, b: Array, log_sigma: Array) -> Array:
        """Return log likelihoods [F, S]; `g` becomes the squares of residuals over 4 sigma^2 [F, n, S]."""
        variance = np.exp(2.0 * log_sigma) + LEAST**2
        precision, n, y = 0.25 / variance, g.shape[1], self.curve.values[:, None]
        quarter, totals = -(-n // 4), np.empty_like(first)
        several = max(1, _CACHED // g[0].size)
        for start in range(0, len(g), several):
            rows = slice(start, start + several)
            here = g[rows]
            np.multiply(here, b[rows, None], out=here)
            np.add(here, first[rows, None], out=here)
            np.subtract(here, y, out=here)
            np.square(here, out=here)
            np.multiply(here, precision[rows, None], out=here)
            product = here[:, :quarter] + np.float32(1)  # the logarithm of a product costs less than logarithms
            for next_ in range(quarter, n, quarter):
                part = here[:, next_ : next_ + quarter]
                product[:, : part.shape[1]] *= part + np.float32(1)
            totals[rows] = np.log(product, out=product).sum(axis=1)
        found: Array = np.float32(self.worth) * (-2.5 * totals - 0.5 * n * np.log(variance))
        return found

    def log_density(self, theta: Array) -> Array:
        """Return the log of prior and likelihood [F, S] of (a, b, log p, log q, log sigma) [F, 5, S]."""
        b = np.where(self.positive, np.exp(theta[:, 1]), theta[:, 1])
        likelihood = self.log_likelihood(self.shapes(theta[:, 2:4]), theta[:, 0], b, theta[:, 4])
        return self.joined(theta, likelihood)

    def joined(self, theta: Array, likelihood: Array) -> Array:
        """Return log likelihoods with the log prior added; -1e30 where there is none."""
        scaled = self.unroot @ (theta[:, :4] - self.prior.mean[:, :, None])
        prior = self.steep - 0.5 * np.square(scaled, out=scaled).sum(axis=1)
        density = likelihood + prior - 0.5 * np.exp(2.0 * theta[:, 4]) + theta[:, 4]
        return np.where(np.isfinite(density), density, _NEVER)


@dataclass(frozen=True, slots=True)
class Cloud:
    """Draws of each family: (a, b, log p, log q, log sigma) [F, 5, S], log weights [F, S], trust in points [F, n]."""

    theta: Array
    log_weights: Array
    likelihood: Array  # the greatest log likelihood [F]
    trust: Array  # 5 / (4 + r^2) of the best draw: what the t distribution makes of outliers
    best: Array  # [F]: which draw that is

    @property
    def weights(self) -> Array:
        """Relative to the greatest of the family."""
        found: Array = np.exp(self.log_weights - self.log_weights.max(axis=1, keepdims=True))
        return found

    @property
    def evidence(self) -> Array:
        """The logarithms of the mean weights [F]."""
        found: Array = self.log_weights.max(axis=1) + np.log(self.weights.mean(axis=1))
        return found

    def only(self, rows: Array) -> "Cloud":
        """Return that of some of the families."""
        return Cloud(self.theta[rows], self.log_weights[rows], self.likelihood[rows], self.trust[rows], self.best[rows])

    def joined(self, other: "Cloud") -> "Cloud":
        """Return the draws of both, which estimate the same; trust is the other's."""
        return Cloud(
            np.concatenate([self.theta, other.theta], axis=2),
            np.concatenate([self.log_weights, other.log_weights], axis=1),
            np.maximum(self.likelihood, other.likelihood),
            other.trust,
            other.best + self.log_weights.shape[1],
        )

    def adapted(self, prior: Prior) -> Shape:
        """Return the mixtures for the next round: where the draws were good, and a tenth of the prior."""
        gaps = self.log_weights - self.log_weights.max(axis=1, keepdims=True)
        weights, temper = np.exp(gaps), np.ones((len(gaps), 1), np.float32)
        least = min(25.0, 0.2 * gaps.shape[1])
        while True:  # not from too few
            few = weights.sum(axis=1) ** 2 < least * np.square(weights).sum(axis=1)
            few &= temper[:, 0] > 1e-3
            if not few.any():
                break
            temper[few] *= 0.5
            weights[few] = np.exp(temper[few] * gaps[few])
        weights /= weights.sum(axis=1, keepdims=True)
        shapes = self.theta[:, 2:4]
        mean = np.einsum("fs,fps->fp", weights, shapes)[:, None]  # [F, 1, 2]
        gap = shapes - mean.transpose(0, 2, 1)
        covariance = (gap * weights[:, None]) @ gap.transpose(0, 2, 1) + 1e-6 * np.eye(2, dtype=np.float32)
        root = np.linalg.cholesky(covariance)
        marks = (np.arange(_KERNELS, dtype=np.float32)[:, None] + 0.5) / _KERNELS
        rows = (np.cumsum(weights, axis=1)[:, None] < marks).sum(axis=2).clip(max=gaps.shape[1] - 1)
        unroot = np.linalg.inv(root)
        kernels = unroot @ np.take_along_axis(gap, rows[:, None], axis=2)
        far = unroot @ (prior.mean[:, None, 2:] - mean).transpose(0, 2, 1)
        means = np.concatenate([kernels, np.zeros_like(far), far], axis=2).transpose(0, 2, 1)
        narrow = np.square(weights).sum(axis=1) ** (1.0 / 6.0)  # Silverman's rule, of the effective sample
        scales = np.concatenate(
            [np.tile(narrow[:, None], _KERNELS), np.full((len(narrow), 1), 2.0, np.float32)], axis=1
        )
        roots = scales[..., None, None] * np.eye(2, dtype=np.float32)
        roots = np.concatenate([roots, (unroot @ prior.wide)[:, None]], axis=1)
        return Shape(mean[:, 0], root, means, roots, np.array([0.8 / _KERNELS] * _KERNELS + [0.1, 0.1]))


def search(model: Model, noise: Noise, rounds: int) -> tuple[Cloud, Shape]:
    """Return the last of the rounds that find where the shape is, and the mixture to draw from next."""
    values = model.curve.values
    late = values[values.size // 2 :]  # a flat end, with whatever was before as outliers
    gap = (values - np.median(late)) / (1.5 * np.median(np.abs(late - np.median(late))) + LEAST)
    shape, trust = Shape.of(model.prior), np.tile(5.0 / (4.0 + gap**2), (len(model.families), 1))
    for _ in range(rounds):
        found = cloud(model, shape, noise, count=_ROUND, trust=trust)
        shape, trust = found.adapted(model.prior), found.trust
    return found, shape


def cloud(model: Model, shape: Shape, noise: Noise, *, count: int, trust: Array) -> Cloud:
    """Draw shapes from `shape`, the rest given the shape, and weigh.

    Given the shape: b around its least-squares value with all points, around that with each point's trust, and around
    the prior; then a, and sigma, likewise with all points and with trust.
    """
    n, standard = model.curve.values.size, noise.standard[:, :count]
    pq, proposal = shape.draw(noise, count)
    g = model.shapes(pq)
    middle = g.mean(axis=1)
    g -= middle[:, None]
    lines = _lines(model, g, trust)
    mean, own = model.prior.mean.T[..., None], 1.0 / np.square(model.prior.root).sum(axis=2).T[..., None]
    parts = [(2, np.broadcast_to(mean[1], proposal.shape), own[1] ** -0.5)]
    for share, line in zip((1, 3), lines, strict=True):
        error = (np.sqrt(line.left / max(n - 2, 1)) + LEAST) / np.sqrt(line.square * model.worth)
        # of log b; a slope below its error says only that b is less than that
        weak, strong = line.slope < 2.0 * error, np.maximum(line.slope, error)
        fitted = np.log(np.where(weak, error, strong))
        known = np.where(model.positive, np.where(weak, 0.7, (strong / error) ** 2), error**-2.0)
        near = (known * np.where(model.positive, fitted, line.slope) + own[1] * mean[1]) / (known + own[1])
        width, unknown = 1.2 * (known + own[1]) ** -0.5, weak & model.positive
        reach = 0.5 * np.maximum(fitted - mean[1], 0.7)  # from where the prior has it up to the error
        near, width = np.where(unknown, fitted - reach, near), np.where(unknown, np.maximum(width, reach), width)
        parts.append((share, near, width))
    second, density = _mixed(parts, standard[0], 1)
    proposal += density
    b = np.where(model.positive, np.exp(second), second)
    places, scales = [], []
    for line in lines:
        known = model.worth * line.total / (np.sqrt(line.residual(b) / max(n - 1, 1)) + LEAST) ** 2
        places.append((known * (line.mean_y - b * line.mean_g) + own[0] * mean[0]) / (known + own[0]))
        scales.append(1.2 * (known + own[0]) ** -0.5)
    parts = [(3, places[1], scales[1]), (1, places[1], np.maximum(scales[0], 3.0 * scales[1]))]
    moved, density = _mixed(parts, standard[1], 6)  # a + b * middle
    proposal += density
    widths = [(line.residual(b) + line.total * (line.mean_y - moved - b * line.mean_g) ** 2) / n for line in lines]
    bounds = [np.maximum(width - LEAST**2, LEAST**2 / n) for width in widths]
    several = n * model.worth
    places = [-0.5 * np.log(1.0 / bound + 1.0 / several) for bound in bounds]  # the half-normal bounds it too
    scale = np.minimum(1.1 / np.sqrt(several) * np.maximum(widths[1], LEAST**2) / bounds[1], 1.0)
    wide = 0.5 * np.abs(places[0] - places[1]) + np.maximum(1.5 / np.sqrt(several), scale)
    parts = [(2, places[1], scale), (1, 0.5 * (places[0] + places[1]), wide)]
    log_sigma, density = _mixed(parts, standard[2], 24)
    proposal += density
    likelihood = model.log_likelihood(g, moved, b, log_sigma)
    theta = np.stack([moved - b * middle, second, pq[:, 0], pq[:, 1], log_sigma], axis=1)
    log_density = model.joined(theta, likelihood)
    best = log_density.argmax(axis=1)
    squares = np.take_along_axis(g, best[:, None, None], axis=2)[:, :, 0]
    log_weights = np.where(np.isfinite(proposal), log_density - proposal, _NEVER)
    return Cloud(
        theta, log_weights, np.fmax.reduce(likelihood, axis=1), 5.0 / (4.0 + 4.0 * np.nan_to_num(squares)), best
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """Weighted least squares y = c + b g: sum of weights [F, 1], means, slope, sum of squares of g, what it leaves."""

    total: Array
    mean_g: Array
    mean_y: Array
    slope: Array
    square: Array
    left: Array

    def residual(self, b: Array) -> Array:
        """Return the sum of squares that is left with another slope."""
        found: Array = self.left + (b - self.slope) ** 2 * self.square
        return found


def _lines(model: Model, g: Array, trust: Array) -> tuple[_Line, _Line]:
    """Return the fits with all points alike and with `trust` [F, n]; sums over points are products of matrices."""
    y = model.curve.values
    weights = np.stack([np.ones_like(trust), trust], axis=1)  # [F, 2, n]
    total = weights.sum(axis=2, keepdims=True)
    mean_y = weights @ y[:, None] / total
    gaps = y - mean_y  # [F, 2, n]
    sums, squares = model.sums(np.concatenate([weights, weights * gaps], axis=1), g)
    mean_g, product = sums[:, :2] / total, sums[:, 2:]
    square = np.maximum(squares[:, :2] - total * mean_g**2, 1e-12)
    slope = product / square
    left = np.maximum((weights * gaps**2).sum(axis=2, keepdims=True) - slope * product, 0.0)
    one, two = (_Line(total[:, k], mean_g[:, k], mean_y[:, k], slope[:, k], square[:, k], left[:, k]) for k in (0, 1))
    return one, two


def _mixed(parts: Sequence[tuple[int, Array, Array]], standard: Array, turn: int) -> tuple[Array, Array]:
    """Return draws [F, S] from mixtures of t distributions, each draw's own, and their log densities.

    `parts` are (share, location, scale), shares in whole numbers. They are taken in turns of `turn` draws, so that all
    combinations of the parts of several mixtures occur.
    """
    shares = np.array([share for share, _, _ in parts])
    chosen = np.repeat(np.arange(len(parts)), shares)[np.arange(standard.size) // turn % shares.sum()]
    drawn = np.empty(parts[0][1].shape, np.float32)
    for part, (_, place, scale) in enumerate(parts):
        np.copyto(drawn, place + scale * standard, where=chosen == part)
    density = np.zeros_like(drawn)
    for share, place, scale in parts:
        near = 1.0 / (1.0 + ((drawn - place) / scale) ** 2 / NU)
        density += near * near * near * (share / shares.sum() / scale)
    return drawn, np.log(density) + _LOG_T
