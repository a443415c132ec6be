"""Objectives: a metric's name, a direction, and perhaps a bound that a good trial must keep."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from trainwright.errors import ObjectiveError

__all__ = ["Objective", "parse_objectives", "refusal"]

_FORM = re.compile(r"^\s*(?:(min|max)\s+)?([^\s<>=]+)\s*(?:(<=|>=)\s*(\S+))?\s*$")


@dataclass(frozen=True, slots=True)
class Objective:
    """One goal: make `metric` small ("min") or large ("max"), within `bound` if one is given (the user's units)."""

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
        direction = cast("Literal['min', 'max']", given)
        if sign is None:
            return cls(metric, direction)
        if sign != ("<=" if direction == "min" else ">="):
            other = "<=" if direction == "min" else ">="
            raise ObjectiveError(f"objective {text!r}: a bound on '{direction}' is written with {other}, got {sign}")
        try:
            limit = float(bound)
        except ValueError:
            limit = math.nan
        if math.isnan(limit):
            raise ObjectiveError(f"objective {text!r}: the bound {bound!r} is not a number")
        return cls(metric, direction, limit)

    def loss(self, value: float) -> float:
        """Return `value` as a loss (lower is better); NaN and infinities become +inf."""
        if not math.isfinite(value):
            return math.inf
        return value if self.direction == "min" else -value

    def number(self, value: Any, where: str) -> float:
        """Return a reported value as a float, or raise `ObjectiveError` naming `where` it was given."""
        try:
            if isinstance(value, str | bytes | bool):
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            raise ObjectiveError(
                f"{where}: {self.metric} must be a number, got {value!r} ({type(value).__name__})"
            ) from None

    def __str__(self) -> str:
        sign = "<=" if self.direction == "min" else ">="
        return f"{self.direction} {self.metric}" + (f" {sign} {self.bound:g}" if self.bound is not None else "")


def parse_objectives(objectives: str | Sequence[str]) -> tuple[Objective, ...]:
    """Return the objectives of one text or a sequence of texts, each metric named once."""
    if not isinstance(objectives, Sequence):
        raise ObjectiveError(
            f"objectives: got {objectives!r}; allowed: a text such as 'min val_loss', or a list of them"
        )
    texts = [objectives] if isinstance(objectives, str) else list(objectives)
    if not texts:
        raise ObjectiveError("objectives: at least one is needed, such as 'min val_loss'; got none")
    parsed = tuple(Objective.parse(text) for text in texts)
    metrics = [objective.metric for objective in parsed]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise ObjectiveError(f"objectives: {metric!r} is named twice; give each metric one direction")
    return parsed


def refusal(objectives: Sequence[Objective], metrics: Mapping[str, float], when: str) -> str | None:
    """Return the sentence that says what is wrong with the objectives among a trial's metrics, or None."""
    for objective in objectives:
        if objective.metric not in metrics:
            reported = ", ".join(sorted(metrics)) or "nothing"
            return f"objective {objective.metric!r} is missing {when}; reported: {reported}"
        if not math.isfinite(float(metrics[objective.metric])):
            return f"objective {objective.metric!r} is {float(metrics[objective.metric])} {when}"
    return None
