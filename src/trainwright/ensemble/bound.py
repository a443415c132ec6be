"""How good any weights could be: the least cross-entropy of a weighted mean over the whole library, with a certificate.

The loss is convex in weights a on the simplex. Multiplicative updates a_l <- a_l g_l with g_l the mean over rows of
P_l / sum_j a_j P_j (expectation maximisation for mixture proportions) never raise it, and at every step
loss(a) - optimum <= log max g (Cover, IEEE Trans. Inf. Theory 1984), so the bound holds wherever they stop.
"""

import math
from dataclasses import dataclass

import numpy as np

from trainwright.ensemble.metrics import SMALLEST, Array

__all__ = ["Bound", "convex_bound"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """No weighted mean of the library has a cross-entropy below `least`; `loss` is reached by `weights` [L]."""

    loss: float
    least: float  # loss - log max g
    weights: Array
    steps: int


def convex_bound(true: Array, *, tolerance: float = 1e-4, most: int = 500) -> Bound:
    """Return the bound for probabilities of the true class [L, N]; stops at a gap of `tolerance` nats; steps O(L N)."""
    chance = np.maximum(true, np.float32(SMALLEST)).astype(np.float64)
    weights = np.full(len(chance), 1.0 / len(chance))
    least, step = -math.inf, 0
    for step in range(1, most + 1):
        mixed = weights @ chance
        slope = (chance @ (1.0 / mixed)) / len(mixed)
        loss = -float(np.log(mixed).mean())
        least = max(least, loss - math.log(float(slope.max())))
        if loss - least <= tolerance or step == most:
            break
        weights = weights * slope
        weights /= weights.sum()
    return Bound(loss=loss, least=min(least, loss), weights=weights, steps=step)
