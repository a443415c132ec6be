"""Several targets as one: bounds as penalties, and weights of objectives drawn from the simplex.

As in D-MoBO (Égelé et al., arXiv 2309.14936).
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["penalised", "simplex"]

Array = NDArray[np.float64]

_PENALTY = 2.0


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
