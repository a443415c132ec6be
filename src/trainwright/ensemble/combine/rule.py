"""Combination rules fold the predictions of several members into one; this module has their contract and the fold."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Self

import numpy as np

from trainwright.ensemble.metrics import Array

__all__ = ["AllMembersRule", "CombinationRule", "combine", "combine_arrived"]


class CombinationRule(ABC):
    """A fold: `init`, then `add` once per member in member order, then `finish` for the combined prediction.

    Predictions are class probabilities or real values [N, C], or pairs of mean and variance [N, T, 2]. A missing
    member is not added: rules renormalise over the weights of the members that were.
    """

    name: ClassVar[str]  # in study files, manifests and tables
    outputs: ClassVar[tuple[str, ...]]  # kinds of prediction that it combines: "classes", "values", "moments"
    linear: ClassVar[bool] = False  # whether each class is combined from the predictions for that class alone

    @abstractmethod
    def init(self, rows: int, outputs: int) -> Any:
        """Return the state before any member, for N rows and C classes or T outputs."""

    @abstractmethod
    def add(self, state: Any, member: int, prediction: Array, weight: float) -> Any:
        """Return the state with the prediction of member number `member` folded in; `state` is not changed."""

    @abstractmethod
    def finish(self, state: Any) -> Array:
        """Return the combined prediction, in the shape of the members', in float64."""

    def without(self, missing: frozenset[int]) -> "CombinationRule":  # noqa: ARG002 - for subclasses
        """Return the rule to use when these members are missing: itself unless it cannot do without."""
        return self

    def fit(self, predictions: Sequence[Array], targets: Array) -> Self:  # noqa: ARG002 - for subclasses
        """Return the rule fitted to the members' predictions and the targets; itself if it learns nothing."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Return name and settings, from which `trainwright.ensemble.combine.rules.make_rule` makes the rule again."""
        return {"name": self.name, **{key: list(value) for key, value in asdict(self).items()}}  # type: ignore[call-overload]


class AllMembersRule(CombinationRule):
    """A rule of one method, `combine_all`: its state is every member's prediction and weight, by member number."""

    @abstractmethod
    def combine_all(self, predictions: Array, weights: Array) -> Array:
        """Return the combination of predictions [K, N, C] with weights [K], in member order."""

    def init(self, rows: int, outputs: int) -> Mapping[int, tuple[Array, float]]:  # noqa: ARG002 - the fold's form
        """Return the state before any member."""
        return {}

    def add(
        self, state: Mapping[int, tuple[Array, float]], member: int, prediction: Array, weight: float
    ) -> Mapping[int, tuple[Array, float]]:
        """Return the state with one member's prediction."""
        return {**state, member: (prediction.astype(np.float64), weight)}

    def finish(self, state: Mapping[int, tuple[Array, float]]) -> Array:
        """Return the combined prediction."""
        members = [state[number] for number in sorted(state)]
        return self.combine_all(
            np.stack([prediction for prediction, _ in members]), np.array([weight for _, weight in members])
        )


def combine_arrived(
    rule: CombinationRule, arrived: Mapping[int, Array], weights: Sequence[float]
) -> tuple[Array, CombinationRule]:
    """Return the combination of the members that have answered, by number, and the rule that was applied.

    They are reduced in member order, so that every order of arrival gives the same bits. A fitted rule may have no
    meaning for fewer members; it then names the rule that takes its place.
    """
    missing = frozenset(range(len(weights))) - arrived.keys()
    used = rule.without(missing) if missing else rule
    return _fold_members(used, ((member, arrived[member], weights[member]) for member in sorted(arrived))), used


def combine(rule: CombinationRule, predictions: Iterable[Array], weights: Sequence[float]) -> Array:
    """Fold the predictions of all members, taken one at a time in member order, into one by `rule`."""
    pairs = enumerate(zip(predictions, weights, strict=True))
    return _fold_members(rule, ((member, prediction, weight) for member, (prediction, weight) in pairs))


def _fold_members(rule: CombinationRule, members: Iterable[tuple[int, Array, float]]) -> Array:
    state: Any = None
    for member, prediction, weight in members:
        # The first prediction says how many rows and outputs there are.
        state = rule.init(*prediction.shape[:2]) if state is None else state
        state = rule.add(state, member, prediction, weight)
    if state is None:
        raise ValueError("combine needs at least one prediction")
    return np.asarray(rule.finish(state))
