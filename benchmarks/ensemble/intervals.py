"""Central intervals of mixtures of normal distributions, as ensembles had before conformal prediction."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["coverage", "mixture_quantiles"]

Array = npt.NDArray[Any]
_HALVINGS = 60


def coverage(members: Sequence[Array], weights: Sequence[float], targets: Array, level: float) -> tuple[float, float]:
    """Return the share of targets [N, T] in the central interval of the mixture of members, K times [N, T, 2].

    And the interval's mean length.
    """
    low, high = mixture_quantiles(members, weights, [0.5 - level / 2, 0.5 + level / 2])
    return float(((targets >= low) & (targets <= high)).mean()), float((high - low).mean())


def mixture_quantiles(members: Sequence[Array], weights: Sequence[float], levels: Sequence[float]) -> Array:
    """Return quantiles [levels, N, T] of mixtures of normal distributions, K times [N, T, 2], by bisection."""
    from scipy.special import ndtr, ndtri

    pairs = np.stack(members).astype(np.float64)
    mean, deviation = pairs[..., 0], np.sqrt(pairs[..., 1])
    # The mixture's distribution function is the weighted mean of the members', which is monotone.
    share = np.asarray(weights, dtype=np.float64) / sum(weights)
    found = []
    for level in levels:
        ends = mean + deviation * ndtri(level)  # the mixture's quantile lies between its members'
        low, high = ends.min(axis=0), ends.max(axis=0)
        # 60 halvings reach the precision of float64 from any range.
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = np.tensordot(share, ndtr((middle - mean) / deviation), axes=1) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        found.append((low + high) / 2)
    return np.stack(found)
