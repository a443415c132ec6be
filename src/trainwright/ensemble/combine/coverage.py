"""Whether an ensemble knows how sure it is: coverage of intervals, and CRPS."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.ensemble.metrics import Array

__all__ = ["Coverage", "coverage", "crps", "mixture_quantiles"]

_LEVELS = (0.5, 0.8, 0.9, 0.95)
_HALVINGS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Central intervals: the share of targets that should lie inside, the share that does, the mean length."""

    nominal: float
    empirical: float
    length: float


def coverage(
    members: Sequence[Array], weights: Sequence[float], targets: Array, levels: Sequence[float] = _LEVELS
) -> tuple[Coverage, ...]:
    """Return the coverage of targets [N, T] by central intervals of the mixture of members, K times [N, T, 2]."""
    found = []
    for level in levels:
        # Quantiles of the mixture itself, which may have several modes, not of a normal distribution with its
        # variance.
        low, high = mixture_quantiles(members, weights, [0.5 - level / 2, 0.5 + level / 2])
        inside = (targets >= low) & (targets <= high)
        found.append(Coverage(nominal=level, empirical=float(inside.mean()), length=float((high - low).mean())))
    return tuple(found)


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


def crps(prediction: Array, targets: Array) -> float:
    """Return the mean continuous ranked probability score of normal distributions [N, T, 2] for targets [N, T].

    Closed form of Gneiting, Raftery (JASA 2007); in the targets' unit, lower is better.
    """
    from scipy.special import ndtr

    deviation = np.sqrt(prediction[..., 1])
    z = (targets - prediction[..., 0]) / deviation
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return float((deviation * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))).mean())
