"""Families of learning curves f(z) = a + b g(z; p, q) over z = epoch / full length, in unconstrained parameters.

After Domhan et al. (IJCAI 2015) and Viering and Loog (arXiv 2103.10948). Parameters are (a, b or its logarithm, log p,
log q); what a family does not use has no effect, so that all families are worked on in one array.
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
    """The points z [n, 1] at which curves are computed, their logarithms, and values of families without p and q."""

    z: Array
    log_z: Array
    ilog: Array

    @classmethod
    def of(cls, z: Array, length: int) -> "Grid":
        """Return the grid of z in (0, 1], for trials of `length` epochs."""
        column = np.asarray(z, dtype=float)[:, None]
        return cls(column, np.log(column), 1.0 / np.log1p(np.e * length * column))

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
    return np.broadcast_to(grid.ilog, (grid.ilog.size, u.size))


def _janoschek(u: Array, v: Array, grid: Grid) -> Array:
    found: Array = np.exp(-np.exp(np.exp(v) * grid.log_z + u))
    return found


def _lin_log(u: Array, v: Array, grid: Grid) -> Array:  # noqa: ARG001 -- likewise
    return np.broadcast_to(-grid.log_z, (grid.log_z.size, u.size))


@dataclass(frozen=True, slots=True)
class Family:
    """One family: g(log p, log q, grid), and whether b > 0 (else any sign)."""

    name: str
    shape: Callable[[Array, Array, Grid], Array]
    positive: bool = True

    def curve(self, theta: Array, grid: Grid) -> Array:
        """Return f [points, S] of parameters [4, S]."""
        b = np.exp(theta[1]) if self.positive else theta[1]
        found: Array = theta[0] + b * self.shape(theta[2], theta[3], grid)
        return found


FAMILIES = {
    family.name: family
    for family in (
        Family("pow3", _power),
        Family("pow4", _shifted_power),
        Family("exp4", _weibull),
        Family("mmf4", _mmf, positive=False),
        Family("hill4", _hill),
        Family("ilog2", _inverse_log),
        Family("janoschek4", _janoschek),
        Family("lin-log", _lin_log),
    )
}
