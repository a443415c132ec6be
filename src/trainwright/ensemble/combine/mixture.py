"""Mixtures of normal distributions: mean and variance of several regression networks together.

Law of total variance, as in AutoDEUQ (Egele et al., arXiv 2110.13511, section III): mu = sum w mu_k and
variance = sum w sigma_k^2 + sum w (mu_k - mu)^2, the first term aleatoric, the second epistemic. Partial sums are
merged after Chan, Golub, LeVeque (1979), so that nothing cancels however far the means lie from 0.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trainwright.ensemble.combine.rule import Rule
from trainwright.ensemble.metrics import Array

__all__ = ["Mixture", "Moments"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Sum of weights, and per row and output [N, T] the mean, squared deviations from it, and variances, weighted."""

    weight: float
    mean: Array
    spread: Array  # sum w (mu_k - mean)^2
    noise: Array  # sum w sigma_k^2


@dataclass(frozen=True)
class Mixture:
    """The mean and variance [N, T, 2] of the weighted mixture of the members' normal distributions."""

    name: ClassVar[str] = "mixture"
    outputs: ClassVar[tuple[str, ...]] = ("moments",)
    linear: ClassVar[bool] = False
    needs_all: ClassVar[bool] = False

    def init(self, rows: int, outputs: int) -> Moments:
        """Return the state before any member."""
        nothing = np.zeros((rows, outputs))
        return Moments(weight=0.0, mean=nothing, spread=nothing, noise=nothing)

    def add(self, state: Moments, member: int, prediction: Array, weight: float) -> Moments:  # noqa: ARG002 - the form
        """Return the state with one member's means and variances [N, T, 2] folded in."""
        wide = prediction.astype(np.float64)
        mean, variance = wide[..., 0], wide[..., 1]
        one = Moments(weight=weight, mean=mean, spread=np.zeros_like(mean), noise=weight * variance)
        return self.merge(state, one)

    def merge(self, one: Moments, other: Moments) -> Moments:
        """Return the state of the members of both."""
        if one.weight == 0.0 or other.weight == 0.0:
            return other if one.weight == 0.0 else one
        weight = one.weight + other.weight
        apart = other.mean - one.mean
        return Moments(
            weight=weight,
            mean=one.mean + apart * (other.weight / weight),
            spread=one.spread + other.spread + apart**2 * (one.weight * other.weight / weight),
            noise=one.noise + other.noise,
        )

    def finish(self, state: Moments) -> Array:
        """Return means and variances [N, T, 2]."""
        return np.stack([state.mean, (state.noise + state.spread) / state.weight], axis=-1)

    def without(self, missing: frozenset[int]) -> Rule:  # noqa: ARG002 - the fold's form
        """Return itself: the mixture of those present."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the name; there are no settings."""
        return {"name": self.name}
