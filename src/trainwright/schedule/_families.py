"""Families of learning curves f(z) = a + b g(z; p, q) over z = epoch / full length, in unconstrained parameters.

After Domhan et al. (IJCAI 2015) and Viering and Loog (arXiv 2103.10948). A parameter row is (a, b or its logarithm,
log p, log q, log sigma); entries that a family does not use have no effect.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAMILIES", "Family", "Grid"]

Array = NDArray[Any]  # of either precision


@dataclass(frozen=True, slots=True)
class Grid:
    """The points z at which curves are computed, their logarithms, and the values of families without p and q."""

    z: Array
    log_z: Array
    ilog: Array

    @classmethod
    def of(cls, z: Array, length: int) -> "Grid":
        """Return the grid of z in (0, 1], for trials of `length` epochs."""
        return cls(z, np.log(z), 1.0 / np.log1p(np.e * length * z))

    def single(self) -> "Grid":
        """Return the grid in single precision, enough for weights of draws and several times as fast."""
        return Grid(self.z.astype(np.float32), self.log_z.astype(np.float32), self.ilog.astype(np.float32))


def _power(u: Array, v: Array, grid: Grid) -> Array:  # noqa: ARG001 -- families share one signature
    found: Array = np.exp(-np.exp(u) * grid.log_z)
    return found


def _shifted_power(u: Array, v: Array, grid: Grid) -> Array:
    found: Array = np.exp(-np.exp(u) * np.log(grid.z + np.exp(v)))
    return found


def _weibull(u: Array, v: Array, grid: Grid) -> Array:
    found: Array = np.exp(-np.exp(np.exp(v) * (grid.log_z - u)))
    return found


def _mmf(u: Array, v: Array, grid: Grid) -> Array:
    found: Array = 1.0 / (1.0 + np.exp(np.exp(v) * grid.log_z - u))
    return found


def _hill(u: Array, v: Array, grid: Grid) -> Array:
    found: Array = -1.0 / (1.0 + np.exp(np.exp(v) * (u - grid.log_z)))
    return found


def _inverse_log(u: Array, v: Array, grid: Grid) -> Array:  # noqa: ARG001 -- likewise
    return np.broadcast_to(grid.ilog, (*u.shape[:-1], grid.z.size))


def _janoschek(u: Array, v: Array, grid: Grid) -> Array:
    found: Array = np.exp(-np.exp(np.exp(v) * grid.log_z + u))
    return found


def _lin_log(u: Array, v: Array, grid: Grid) -> Array:  # noqa: ARG001 -- likewise
    return np.broadcast_to(-grid.log_z, (*u.shape[:-1], grid.z.size))


@dataclass(frozen=True, slots=True)
class Family:
    """One family: g(log p, log q, grid), how many of p and q it uses, and whether b > 0 (else any sign)."""

    name: str
    shape: Callable[[Array, Array, Grid], Array]
    used: int
    positive: bool = True

    def curve(self, theta: Array, grid: Grid) -> Array:
        """Return f [..., points] of parameter rows [..., 5]."""
        b = np.exp(theta[..., 1:2]) if self.positive else theta[..., 1:2]
        found: Array = theta[..., 0:1] + b * self.shape(theta[..., 2:3], theta[..., 3:4], grid)
        return found


FAMILIES = {
    family.name: family
    for family in (
        Family("pow3", _power, 1),
        Family("pow4", _shifted_power, 2),
        Family("exp4", _weibull, 2),
        Family("mmf4", _mmf, 2, positive=False),
        Family("hill4", _hill, 2),
        Family("ilog2", _inverse_log, 0),
        Family("janoschek4", _janoschek, 2),
        Family("lin-log", _lin_log, 0),
    )
}
