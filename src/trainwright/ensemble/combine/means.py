"""Means as combination rules: of probabilities or values, of logarithms of probabilities, of votes."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trainwright.ensemble.combine.rule import Rule
from trainwright.ensemble.metrics import SMALLEST, Array

__all__ = ["Geometric", "Mean", "Sums", "Vote", "Weighted"]

_TIE = 1e-9  # share of the mean probability in a vote


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """What a mean keeps between members: the weighted sum of their terms in float64, and the sum of weights."""

    total: Array
    weight: float


@dataclass(frozen=True)
class Weighted:
    """The weighted mean; a missing member's weight falls to the others."""

    name: ClassVar[str] = "weighted"
    outputs: ClassVar[tuple[str, ...]] = ("classes", "values")
    linear: ClassVar[bool] = True
    needs_all: ClassVar[bool] = False

    def init(self, rows: int, outputs: int) -> Sums:
        """Return the state before any member."""
        return Sums(total=np.zeros((rows, outputs)), weight=0.0)

    def add(self, state: Sums, member: int, prediction: Array, weight: float) -> Sums:  # noqa: ARG002 - the fold's form
        """Return the state with one member's prediction [N, C] folded in."""
        term = self._term(prediction.astype(np.float64))
        return Sums(total=state.total + weight * term, weight=state.weight + weight)

    def merge(self, one: Sums, other: Sums) -> Sums:
        """Return the state of the members of both."""
        return Sums(total=one.total + other.total, weight=one.weight + other.weight)

    def finish(self, state: Sums) -> Array:
        """Return the combined prediction [N, C]."""
        return np.asarray(state.total / state.weight)

    def without(self, missing: frozenset[int]) -> Rule:  # noqa: ARG002 - the fold's form
        """Return itself: a mean over fewer members is still that mean."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the name; there are no settings."""
        return {"name": self.name}

    def _term(self, prediction: Array) -> Array:
        return prediction


@dataclass(frozen=True)
class Mean(Weighted):
    """The plain mean: every member counts once, whatever its weight."""

    name: ClassVar[str] = "mean"

    def add(self, state: Sums, member: int, prediction: Array, weight: float) -> Sums:  # noqa: ARG002 - the fold's form
        """Return the state with one member's prediction [N, C] folded in."""
        return super().add(state, member, prediction, 1.0)


@dataclass(frozen=True)
class Geometric(Weighted):
    """The logarithmic opinion pool: softmax of the weighted mean of log p, clipped at 1e-7 (Genest, Zidek 1986)."""

    name: ClassVar[str] = "geometric"
    outputs: ClassVar[tuple[str, ...]] = ("classes",)
    linear: ClassVar[bool] = False

    def finish(self, state: Sums) -> Array:
        """Return the combined probabilities [N, C]."""
        logs = state.total / state.weight
        odds = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def _term(self, prediction: Array) -> Array:
        return np.log(np.maximum(prediction, SMALLEST))


@dataclass(frozen=True)
class Vote(Weighted):
    """Shares of the weighted votes for each member's likeliest class; ties go to the greater mean p, then lower class.

    The mean p enters the shares with a weight of 1e-9, which is what decides between equal shares.
    """

    name: ClassVar[str] = "vote"
    outputs: ClassVar[tuple[str, ...]] = ("classes",)
    linear: ClassVar[bool] = False

    def _term(self, prediction: Array) -> Array:
        votes = np.zeros_like(prediction)
        votes[np.arange(len(prediction)), prediction.argmax(axis=1)] = 1.0
        return np.asarray((1.0 - _TIE) * votes + _TIE * prediction)
