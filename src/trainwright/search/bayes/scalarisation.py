"""From several targets to one: bounds as penalties, then a scalarisation by weights of the simplex.

D-MoBO (Égelé et al., arXiv 2309.14936) for the recipe and the linear form; Chebyshev and its augmented form: Steuer and
Choo, Mathematical Programming 26 (1983); penalty boundary intersection (PBI): Zhang and Li, IEEE TEVC 11 (2007); the
quadratic form is the PBI's smooth relative, y' U diag(1, 10, .., 10) U' y with U's first column along the weights.

Every function takes targets Y [objectives, rows] and weights W [.., objectives], and returns scalars [.., rows].
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["SCALARISATIONS", "Scalarisation", "penalised", "simplex"]

Array = NDArray[np.float64]
Scalarisation = Literal["linear", "chebyshev", "augmented", "pbi", "quadratic"]

_AUGMENTED, _ACROSS, _QUADRATIC = 0.001, 5.0, 10.0
_PENALTY = 2.0


def linear(Y: Array, W: Array) -> Array:
    """Return w . y."""
    found: Array = W @ Y
    return found


def chebyshev(Y: Array, W: Array) -> Array:
    """Return max_i w_i |y_i|."""
    found: Array = (W[..., :, None] * np.abs(Y)).max(axis=-2)
    return found


def augmented(Y: Array, W: Array) -> Array:
    """Return the Chebyshev value and a thousandth of the sum of w_i |y_i|, which breaks its ties."""
    weighed = W[..., :, None] * np.abs(Y)
    found: Array = weighed.max(axis=-2) + _AUGMENTED * weighed.sum(axis=-2)
    return found


def pbi(Y: Array, W: Array) -> Array:
    """Return the way along the weights and five times the distance from that line."""
    along, across = _along_and_across(Y, W)
    return along + _ACROSS * np.sqrt(across)


def quadratic(Y: Array, W: Array) -> Array:
    """Return the squared way along the weights and ten times the squared distance from that line."""
    along, across = _along_and_across(Y, W)
    return along**2 + _QUADRATIC * across


def _along_and_across(Y: Array, W: Array) -> tuple[Array, Array]:
    """Return how far along the direction W the columns of Y lie, and their squared distances from its line."""
    length = np.sqrt((W**2).sum(axis=-1, keepdims=True))
    along = (W @ Y) / length
    return along, np.maximum(0.0, (Y**2).sum(axis=0) - along**2)


SCALARISATIONS: dict[Scalarisation, Callable[[Array, Array], Array]] = {
    "linear": linear,
    "chebyshev": chebyshev,
    "augmented": augmented,
    "pbi": pbi,
    "quadratic": quadratic,
}


def penalised(targets: Array, objectives: int, bounds: Array) -> Array:
    """Return the objectives' targets [objectives, rows], each with 2 max(0, y_j - b_j) of every bounded target j.

    `targets` [targets, rows] and `bounds` [targets] (inf = none) hold objectives first, then constraints, in one scale.
    """
    over: Array = targets[:objectives]
    for j in np.flatnonzero(np.isfinite(bounds)):
        over = over + _PENALTY * np.maximum(0.0, targets[j] - bounds[j])
    return over


def simplex(generator: np.random.Generator, count: int) -> Array:
    """Return weights drawn uniformly from the simplex: normalised exponentials."""
    drawn: Array = -np.log1p(-generator.random(count))
    weights: Array = drawn / drawn.sum()
    return weights
