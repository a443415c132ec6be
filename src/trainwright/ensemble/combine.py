"""Combination rules: how the predictions of several members become one, each rule a fold over members."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trainwright.ensemble.metrics import Array

__all__ = ["Mean", "Rule", "State", "Weighted", "combine"]


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What a rule keeps between members: the weighted sum of predictions [N, C] in float64 and the sum of weights."""

    total: Array
    weight: float


class Rule(Protocol):
    """A fold: `init`, then `add` once per member in member order, `merge` for partial folds, `finish` for the answer.

    A rule is `linear` if its answer for one class depends on the members' predictions for that class alone.
    """

    @property
    def linear(self) -> bool:
        """Say whether classes may be combined one by one."""

    def init(self, rows: int, outputs: int) -> State:
        """Return the state before any member."""

    def add(self, state: State, member: int, prediction: Array, weight: float) -> State:
        """Return the state with the prediction [N, C] of member number `member` folded in."""

    def merge(self, one: State, other: State) -> State:
        """Return the state of the members of both."""

    def finish(self, state: State) -> Array:
        """Return the combined prediction [N, C]."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """The weighted mean; a missing member's weight falls to the others."""

    linear: bool = True

    def init(self, rows: int, outputs: int) -> State:
        """Return the state before any member."""
        return State(total=np.zeros((rows, outputs)), weight=0.0)

    def add(self, state: State, member: int, prediction: Array, weight: float) -> State:  # noqa: ARG002 - the fold's form
        """Return the state with one member's prediction [N, C] folded in."""
        return State(total=state.total + weight * prediction.astype(np.float64), weight=state.weight + weight)

    def merge(self, one: State, other: State) -> State:
        """Return the state of the members of both."""
        return State(total=one.total + other.total, weight=one.weight + other.weight)

    def finish(self, state: State) -> Array:
        """Return the combined prediction [N, C]."""
        return np.asarray(state.total / state.weight)


@dataclass(frozen=True, slots=True)
class Mean(Weighted):
    """The plain mean: every member counts once, whatever its weight."""

    def add(self, state: State, member: int, prediction: Array, weight: float) -> State:  # noqa: ARG002 - the fold's form
        """Return the state with one member's prediction [N, C] folded in."""
        return Weighted.add(self, state, member, prediction, 1.0)


def combine(rule: Rule, predictions: Iterable[Array], weights: Sequence[float]) -> Array:
    """Fold predictions [N, C], taken one at a time in member order, into one by `rule`."""
    state: State | None = None
    for member, (prediction, weight) in enumerate(zip(predictions, weights, strict=True)):
        state = rule.add(state or rule.init(*prediction.shape), member, prediction, weight)
    if state is None:
        raise ValueError("combine needs at least one prediction")
    return rule.finish(state)
