"""The median as a combination rule, and the state of rules that need all members at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from trainwright.ensemble.combine.rule import Rule
from trainwright.ensemble.metrics import Array

__all__ = ["Kept", "Median"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What a rule keeps that needs all members: each one's prediction and weight, by its number."""

    members: Mapping[int, tuple[Array, float]] = field(default_factory=dict)

    def with_member(self, member: int, prediction: Array, weight: float) -> "Kept":
        """Return the state with one more member."""
        return Kept(members={**self.members, member: (prediction.astype(np.float64), weight)})

    def merged(self, other: "Kept") -> "Kept":
        """Return the members of both."""
        return Kept(members={**self.members, **other.members})

    def stacked(self) -> tuple[Array, Array]:
        """Return predictions [K, N, C] and weights [K], in member order."""
        numbers = sorted(self.members)
        return np.stack([self.members[n][0] for n in numbers]), np.array([self.members[n][1] for n in numbers])


@dataclass(frozen=True)
class Median:
    """The weighted median of each class's probability, rows then divided by their sum; keeps all members.

    Where half of the weights lie on either side of a gap it is the gap's middle, so with equal weights the plain
    median. A row whose medians are all 0 is the weighted mean.
    """

    name: ClassVar[str] = "median"
    outputs: ClassVar[tuple[str, ...]] = ("classes",)
    linear: ClassVar[bool] = False
    needs_all: ClassVar[bool] = True

    def init(self, rows: int, outputs: int) -> Kept:  # noqa: ARG002 - the fold's form
        """Return the state before any member."""
        return Kept()

    def add(self, state: Kept, member: int, prediction: Array, weight: float) -> Kept:
        """Return the state with one member's prediction [N, C] kept."""
        return state.with_member(member, prediction, weight)

    def merge(self, one: Kept, other: Kept) -> Kept:
        """Return the state of the members of both."""
        return one.merged(other)

    def finish(self, state: Kept) -> Array:
        """Return the combined probabilities [N, C]."""
        values, weights = state.stacked()
        order = values.argsort(axis=0, kind="stable")
        ordered = np.take_along_axis(values, order, axis=0)
        # Half of the weight to within rounding, so that 0.1 + 0.2 against 0.3 is a tie.
        share = weights[order].cumsum(axis=0) / weights.sum()
        low, high = ((share < half).sum(axis=0) for half in (0.5 - 1e-12, 0.5 + 1e-12))
        high = np.minimum(high, len(values) - 1)
        ends = [np.take_along_axis(ordered, at[None], axis=0)[0] for at in (low, high)]
        middle = (ends[0] + ends[1]) / 2
        sums = middle.sum(axis=1, keepdims=True)
        mean = np.tensordot(weights / weights.sum(), values, axes=1)
        return np.where(sums > 0, middle / np.where(sums > 0, sums, 1.0), mean)

    def without(self, missing: frozenset[int]) -> Rule:  # noqa: ARG002 - the fold's form
        """Return itself: the median of those present."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the name; there are no settings."""
        return {"name": self.name}
