"""How the predictions of several members become one: the contract of a combination rule, and the fold over members."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError

__all__ = ["Combined", "Rule", "Slots", "combine"]


class Rule(Protocol):
    """A fold: `init`, then `add` once per member, `merge` for partial folds, `finish` for the answer.

    Predictions are class probabilities or real values [N, C], or pairs of mean and variance [N, T, 2]. A member that is
    missing is simply not added: rules renormalise over the weights that came.
    """

    @property
    def name(self) -> str:
        """Name in study files, manifests and tables."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Kinds of prediction that can be combined: "classes", "values", "moments"."""

    @property
    def linear(self) -> bool:
        """Say whether the answer for one class depends on the members' predictions for that class alone."""

    @property
    def needs_all(self) -> bool:
        """Say whether predictions have to be kept until the end, so that memory grows with the members."""

    def init(self, rows: int, outputs: int) -> Any:
        """Return the state before any member, for N rows and C classes or T outputs."""

    def add(self, state: Any, member: int, prediction: Array, weight: float) -> Any:
        """Return the state with the prediction of member number `member` folded in; `state` is left as it is."""

    def merge(self, one: Any, other: Any) -> Any:
        """Return the state of the members of both."""

    def finish(self, state: Any) -> Array:
        """Return the combined prediction, in the shape of the members', in float64."""

    def without(self, missing: frozenset[int]) -> "Rule":
        """Return the rule to use when these members are missing: itself unless it cannot do without."""

    def to_json(self) -> dict[str, Any]:
        """Return name and settings, from which `trainwright.ensemble.combine.rules.rule_of` makes the rule again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Combined:
    """One combined prediction, and whose it is."""

    prediction: Array
    members: tuple[int, ...]  # numbers of the members in it, ascending
    missing: tuple[int, ...]
    weight: float  # share of all weights that came, in (0, 1]
    rule: str  # the rule that was applied, which without some members may be another than asked for


@dataclass(kw_only=True)
class Slots:
    """A place per member in which predictions wait, so that the answer is the same bits whatever order they come in."""

    rule: Rule
    weights: Sequence[float]
    _came: dict[int, Array] = field(default_factory=dict, init=False)

    def put(self, member: int, prediction: Array) -> None:
        """Keep the prediction of member number `member`; a second one for the same member is refused."""
        if not 0 <= member < len(self.weights) or member in self._came:
            allowed = ", ".join(str(one) for one in self.missing) or "none, all have come"
            raise EnsembleError(f"Slots.put: got member {member}; allowed: {allowed}")
        self._came[member] = prediction

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the members whose prediction has not come."""
        return tuple(member for member in range(len(self.weights)) if member not in self._came)

    def combined(self) -> Combined:
        """Return the combination of what has come, reduced in member order."""
        if not self._came:
            raise EnsembleError("Slots.combined: got no prediction; allowed: at least one member's")
        rule = self.rule.without(frozenset(self.missing)) if self.missing else self.rule
        members = tuple(sorted(self._came))
        return Combined(
            prediction=_folded(rule, ((one, self._came[one], self.weights[one]) for one in members)),
            members=members,
            missing=self.missing,
            weight=sum(self.weights[one] for one in members) / sum(self.weights),
            rule=rule.name,
        )


def combine(rule: Rule, predictions: Iterable[Array], weights: Sequence[float]) -> Array:
    """Fold the predictions of all members, taken one at a time in member order, into one by `rule`."""
    return _folded(
        rule,
        (
            (member, prediction, weight)
            for member, (prediction, weight) in enumerate(zip(predictions, weights, strict=True))
        ),
    )


def _folded(rule: Rule, members: Iterable[tuple[int, Array, float]]) -> Array:
    state: Any = None
    for member, prediction, weight in members:
        state = rule.init(*prediction.shape[:2]) if state is None else state
        state = rule.add(state, member, prediction, weight)
    if state is None:
        raise ValueError("combine needs at least one prediction")
    return np.asarray(rule.finish(state))
