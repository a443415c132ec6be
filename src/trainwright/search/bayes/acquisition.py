"""Acquisition functions, least where a trial is most wanted: the lower confidence bound, expected improvement."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["expected_improvement", "lower_confidence_bound"]

Array = NDArray[np.float64]


def lower_confidence_bound(mu: Array, deviation: Array, kappa: float) -> Array:
    """Return mu - kappa * deviation; `deviation` is the epistemic one, the spread of the trees' means."""
    return mu - kappa * deviation


def expected_improvement(mu: Array, deviation: Array, best: float) -> Array:
    """Return the expected improvement over `best`, negated (Jones et al., 1998).

    Where nothing is uncertain, it is the improvement itself.
    """
    from scipy.special import ndtr

    better = best - mu
    with np.errstate(divide="ignore", invalid="ignore"):
        z = better / deviation
        expected = better * ndtr(z) + deviation * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    return -np.where(deviation > 0.0, expected, np.maximum(better, 0.0))
