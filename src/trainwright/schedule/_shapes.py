"""Priors over the parameters of learning curves, and mixtures from which their shapes (log p, log q) are drawn."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DRAWS", "NU", "Array", "Noise", "Prior", "Shape"]

Array = NDArray[Any]  # of either precision

DRAWS = 2048
NU = 5.0  # degrees of freedom of proposals in one dimension
_NU2 = 6.0  # and in two


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard draws that all families and rounds share: t [3, S], and normal [2, S] with heavier tails."""

    standard: Array
    normal: Array
    seed: np.random.Generator

    @classmethod
    def of(cls, seed: np.random.Generator) -> "Noise":
        """Draw them."""
        heavy = np.sqrt(_NU2 / seed.chisquare(_NU2, DRAWS))
        standard, normal = seed.standard_t(NU, (3, DRAWS)), seed.standard_normal((2, DRAWS)) * heavy
        return cls(standard.astype(np.float32), normal.astype(np.float32), seed)


@dataclass(frozen=True, slots=True)
class Prior:
    """Normal over the parameters (a, b, log p, log q) of each family: means [F, 4], roots of covariances [F, 4, 4]."""

    mean: Array
    root: Array

    @classmethod
    def of(cls, mean: Array, covariance: Array) -> "Prior":
        """Return the normal with this covariance [F, 4, 4]."""
        return cls(mean.astype(np.float32), np.linalg.cholesky(covariance).astype(np.float32))

    @classmethod
    def broad(cls, families: int) -> "Prior":
        """Return N(0, 2^2) for each."""
        return cls.of(np.zeros((families, 4)), np.tile(4.0 * np.eye(4), (families, 1, 1)))

    @property
    def wide(self) -> Array:
        """Roots of the covariances of (log p, log q) [F, 2, 2]."""
        lower = self.root[:, 2:]
        found: Array = np.linalg.cholesky(lower @ lower.transpose(0, 2, 1))
        return found

    def only(self, rows: Array) -> "Prior":
        """Return those of some of the families."""
        return Prior(self.mean[rows], self.root[rows])


@dataclass(frozen=True, slots=True)
class Shape:
    """Mixtures of t distributions for (log p, log q): origin [F, 2] and frame [F, 2, 2], and in that frame the parts.

    These are means [F, C, 2], roots [F, C, 2, 2], shares [C]; in the frame they are of size one, which single precision
    needs.
    """

    origin: Array
    frame: Array
    means: Array
    roots: Array
    shares: Array

    @classmethod
    def of(cls, prior: Prior) -> "Shape":
        """Return the prior's, with the tails of a t distribution."""
        count = len(prior.mean)
        roots = np.tile(np.eye(2, dtype=np.float32), (count, 1, 1, 1))
        return cls(prior.mean[:, 2:], prior.wide, np.zeros((count, 1, 2), np.float32), roots, np.ones(1))

    def only(self, rows: Array) -> "Shape":
        """Return those of some of the families."""
        return Shape(self.origin[rows], self.frame[rows], self.means[rows], self.roots[rows], self.shares)

    def draw(self, noise: Noise, count: int) -> tuple[Array, Array]:
        """Return shapes [F, 2, S] and their log densities [F, S]."""
        rows = np.searchsorted(np.cumsum(self.shares)[:-1], np.arange(count) * 0.6180339887498949 % 1.0)
        along, down, skew, sink, deep = self._parts()[:, :, rows]
        x = along + sink * noise.normal[0, :count]
        y = down + skew * noise.normal[0, :count] + deep * noise.normal[1, :count]
        basis = np.stack([x * x, x * y, y * y, x, y, np.ones_like(x)], axis=1)
        density = np.empty_like(x)
        for out, form, heights, here in zip(density, *self._forms(), basis, strict=True):
            near = form @ here  # 1 + square / 6; the density is its fourth power
            np.square(near, out=near)
            np.square(near, out=near)
            np.matmul(heights, np.reciprocal(near, out=near), out=out)
        return self.origin[:, :, None] + self.frame @ np.stack([x, y], axis=1), np.log(density)

    def _parts(self) -> Array:
        """Return means and the lower triangles of roots, (x, y, yx, xx, yy) [5, F, C]."""
        lower = self.roots[..., 1, 0], self.roots[..., 0, 0], self.roots[..., 1, 1]
        return np.stack([self.means[..., 0], self.means[..., 1], *lower])

    def _forms(self) -> tuple[Array, Array]:
        """Return 1 + square / 6 of each part as sums of (x^2, xy, y^2, x, y, 1) [F, C, 6], and heights [F, C]."""
        x, y, skew, along, down = self._parts()
        # The square is (x' / along)^2 + (y' / down - x' skew / (along down))^2, with x' and y' from the mean.
        a, b = 1.0 / down, -skew / (along * down)
        xx, xy, yy = (1.0 / along**2 + b * b) / _NU2, a * b / _NU2, a * a / _NU2
        by_x, by_y = xx * x + xy * y, xy * x + yy * y
        form = np.stack([xx, 2.0 * xy, yy, -2.0 * by_x, -2.0 * by_y, 1.0 + by_x * x + by_y * y], axis=2)
        size = (self.frame[:, 0, 0] * self.frame[:, 1, 1])[:, None] * along * down * (2.0 * np.pi)
        return form, (self.shares / size).astype(np.float32)
