"""Parses the objectives and constraints of a study, and checks which trials are feasible."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

from trainwright.errors import ObjectiveError

__all__ = [
    "Constraint",
    "Objective",
    "Outcome",
    "is_feasible",
    "losses_of",
    "parse_constraints",
    "parse_objectives",
    "refusal",
    "violation_of",
]

_FORM = re.compile(r"^\s*(?:(min|max)\s+)?([^\s<>=]+)\s*(?:(<=|>=)\s*(\S+))?\s*$")
_LIMIT = re.compile(r"^\s*([^\s<>=]+)\s*(<=|>=|<|>)\s*(\S+)\s*$")


@dataclass(frozen=True, slots=True)
class Objective:
    """One goal: make `metric` small ("min") or large ("max"), within `bound` if one is given (the user's units)."""

    word: ClassVar[str] = "objective"
    metric: str
    direction: Literal["min", "max"]
    bound: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """Return the objective of "min val_loss" or "max val_accuracy >= 0.85"."""
        match = _FORM.match(text) if isinstance(text, str) else None
        if match is None:
            raise ObjectiveError(f"objective {text!r} is not of the form 'min METRIC' or 'max METRIC >= BOUND'")
        given, metric, sign, bound = match.groups()
        if given is None:
            raise ObjectiveError(f"objective {text!r} lacks a direction; write 'min {metric}' or 'max {metric}'")
        found = cls(metric, cast("Literal['min', 'max']", given))
        if sign is None:
            return found
        if sign != found.sign:
            raise ObjectiveError(f"objective {text!r}: a bound on '{given}' is written with {found.sign}, got {sign}")
        return replace(found, bound=_bound(bound, f"objective {text!r}"))

    @property
    def sign(self) -> str:
        """The sign with which a bound is written."""
        return "<=" if self.direction == "min" else ">="

    def loss(self, value: float) -> float:
        """Return `value` as a loss (lower is better); NaN and infinities become +inf."""
        if not math.isfinite(value):
            return math.inf
        return value if self.direction == "min" else -value

    @property
    def limit(self) -> float:
        """The greatest loss that keeps the bound; inf without one."""
        return math.inf if self.bound is None else self.loss(self.bound)

    def __str__(self) -> str:
        bound = "" if self.bound is None else f" {self.sign} {_text(self.bound)}"
        return f"{self.direction} {self.metric}{bound}"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A limit on a metric that is no objective: a trial that breaks it has a result, but is infeasible."""

    word: ClassVar[str] = "constraint"
    metric: str
    sign: Literal["<=", "<", ">=", ">"]
    bound: float

    @classmethod
    def parse(cls, text: str) -> "Constraint":
        """Return the constraint of "peak_bytes <= 8e9"; the signs are <=, <, >= and >."""
        match = _LIMIT.match(text) if isinstance(text, str) else None
        if match is None:
            raise ObjectiveError(f"constraint {text!r} is not of the form 'METRIC <= BOUND' or 'METRIC >= BOUND'")
        metric, sign, bound = match.groups()
        value = _bound(bound, f"constraint {text!r}")
        if math.isinf(value):
            raise ObjectiveError(f"constraint {text!r}: the bound must be finite")
        return cls(metric, cast("Literal['<=', '<', '>=', '>']", sign), value)

    def loss(self, value: float) -> float:
        """Return `value` as a loss (lower is better); NaN and infinities become +inf."""
        if not math.isfinite(value):
            return math.inf
        return value if self.sign.startswith("<") else -value

    @property
    def limit(self) -> float:
        """The greatest loss that keeps the constraint."""
        loss = self.loss(self.bound)
        return loss if self.sign.endswith("=") else math.nextafter(loss, -math.inf)

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {_text(self.bound)}"


Outcome = Objective | Constraint
"""What a result is judged by."""


def parse_objectives(objectives: str | Sequence[str]) -> tuple[Objective, ...]:
    """Return the objectives of one text or a sequence of texts, each metric named once."""
    texts = _texts(objectives, "objectives", "min val_loss")
    if not texts:
        raise ObjectiveError("objectives: at least one is needed, such as 'min val_loss'; got none")
    parsed = tuple(map(Objective.parse, texts))
    metrics = [objective.metric for objective in parsed]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise ObjectiveError(f"objectives: {metric!r} is named twice; give each metric one direction")
    return parsed


def parse_constraints(constraints: str | Sequence[str], objectives: Sequence[Objective]) -> tuple[Constraint, ...]:
    """Return the constraints of one text or a sequence of texts; an objective's bound is written with the objective."""
    parsed = tuple(map(Constraint.parse, _texts(constraints, "constraints", "peak_bytes <= 8e9")))
    by_metric = {objective.metric: objective for objective in objectives}
    for constraint in parsed:
        if (goal := by_metric.get(constraint.metric)) is not None:
            raise ObjectiveError(
                f"constraint '{constraint}': {constraint.metric!r} is an objective; write its bound there, "
                f"'{goal.direction} {goal.metric} {goal.sign} BOUND'"
            )
    return parsed


def _texts(value: str | Sequence[str], name: str, example: str) -> Sequence[str]:
    if not isinstance(value, Sequence):
        raise ObjectiveError(f"{name}: got {value!r}; allowed: a text such as {example!r}, or a list of them")
    return [value] if isinstance(value, str) else value


def refusal(outcomes: Sequence[Outcome], metrics: Mapping[str, float], when: str) -> str | None:
    """Return the sentence that says what objectives and constraints miss among a trial's metrics, or None."""
    for outcome in outcomes:
        if outcome.metric not in metrics:
            reported = ", ".join(sorted(metrics)) or "nothing"
            return f"{outcome.word} {outcome.metric!r} is missing {when}; reported: {reported}"
        if not math.isfinite(float(metrics[outcome.metric])):
            return f"{outcome.word} {outcome.metric!r} is {float(metrics[outcome.metric])} {when}"
    return None


def losses_of(outcomes: Sequence[Outcome], metrics: Mapping[str, float]) -> tuple[float, ...] | None:
    """Return the losses that the metrics hold, one per outcome; None if one is not among them."""
    try:
        return tuple([outcome.loss(float(metrics[outcome.metric])) for outcome in outcomes])
    except KeyError:
        return None


def is_feasible(outcomes: Sequence[Outcome], metrics: Mapping[str, float]) -> bool:
    """Return whether the metrics of a result keep every bound and constraint."""
    losses = losses_of(outcomes, metrics)
    return losses is not None and all(loss <= o.limit for loss, o in zip(losses, outcomes, strict=True))


def violation_of(outcomes: Sequence[Outcome], losses: Sequence[float]) -> float:
    """Return by how much losses exceed bounds and constraints in all, each as a share of its limit; 0 keeps them."""
    total = 0.0
    for outcome, loss in zip(outcomes, losses, strict=True):
        # So the limit is finite.
        if loss > outcome.limit:
            scale = abs(outcome.limit)
            total += (loss - outcome.limit) / (scale if scale >= sys.float_info.min else 1.0)
    return total


def _bound(text: str, where: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise ObjectiveError(f"{where}: the bound {text!r} is not a number")
    return bound


def _text(bound: float) -> str:
    """Return the shorter of two texts from which the very same number is read again."""
    return f"{bound:g}" if float(f"{bound:g}") == bound else repr(bound)
