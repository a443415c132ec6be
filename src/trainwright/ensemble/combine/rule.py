"""Combination rules fold the predictions of several members into one; this module has their contract and the fold."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError

__all__ = ["AllMembersRule", "CombinationRule", "Combined", "PredictionSlots", "combine"]


class CombinationRule(ABC):
    """A fold: `init`, then `add` once per member, `merge` for partial folds, `finish` for the combined prediction.

    Predictions are class probabilities or real values [N, C], or pairs of mean and variance [N, T, 2]. A missing
    member is not added: rules renormalise over the weights of the members that were.
    """

    name: ClassVar[str]  # in study files, manifests and tables
    outputs: ClassVar[tuple[str, ...]]  # kinds of prediction that it combines: "classes", "values", "moments"
    linear: ClassVar[bool] = False  # whether each class is combined from the predictions for that class alone
    needs_all: ClassVar[bool] = False  # whether it keeps every prediction, so that memory grows with the members

    @abstractmethod
    def init(self, rows: int, outputs: int) -> Any:
        """Return the state before any member, for N rows and C classes or T outputs."""

    @abstractmethod
    def add(self, state: Any, member: int, prediction: Array, weight: float) -> Any:
        """Return the state with the prediction of member number `member` folded in; `state` is not changed."""

    @abstractmethod
    def merge(self, one: Any, other: Any) -> Any:
        """Return the state of the members of both."""

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

    needs_all: ClassVar[bool] = True

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

    def merge(
        self, one: Mapping[int, tuple[Array, float]], other: Mapping[int, tuple[Array, float]]
    ) -> Mapping[int, tuple[Array, float]]:
        """Return the state of the members of both."""
        return {**one, **other}

    def finish(self, state: Mapping[int, tuple[Array, float]]) -> Array:
        """Return the combined prediction."""
        members = [state[number] for number in sorted(state)]
        return self.combine_all(
            np.stack([prediction for prediction, _ in members]), np.array([weight for _, weight in members])
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Combined:
    """One combined prediction, and the members that it is of."""

    prediction: Array
    members: tuple[int, ...]  # numbers of the members in it, ascending
    missing: tuple[int, ...]
    weight: float  # share of the weights of all members, in (0, 1]
    rule: str  # the rule that was applied: another than asked for if that one cannot do without some members


@dataclass(kw_only=True)
class PredictionSlots:
    """A slot per member in which its prediction waits, so that every order of arrival gives the same bits."""

    rule: CombinationRule
    weights: Sequence[float]
    _arrived: dict[int, Array] = field(default_factory=dict, init=False)

    def put(self, member: int, prediction: Array) -> None:
        """Store the prediction of member number `member`; a second one for the same member is refused."""
        if not 0 <= member < len(self.weights) or member in self._arrived:
            allowed = ", ".join(str(number) for number in self.missing) or "none, all have come"
            raise EnsembleError(f"PredictionSlots.put: got member {member}; allowed: {allowed}")
        self._arrived[member] = prediction

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the members whose prediction has not arrived."""
        return tuple(member for member in range(len(self.weights)) if member not in self._arrived)

    def combined(self) -> Combined:
        """Return the combination of the predictions that have arrived, reduced in member order."""
        if not self._arrived:
            raise EnsembleError("PredictionSlots.combined: got no prediction; allowed: at least one member's")
        # A fitted rule may have no meaning for fewer members; it then names the rule that takes its place.
        rule = self.rule.without(frozenset(self.missing)) if self.missing else self.rule
        members = tuple(sorted(self._arrived))
        return Combined(
            prediction=_fold_members(
                rule, ((number, self._arrived[number], self.weights[number]) for number in members)
            ),
            members=members,
            missing=self.missing,
            weight=sum(self.weights[number] for number in members) / sum(self.weights),
            rule=rule.name,
        )


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
