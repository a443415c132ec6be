"""Validate the metrics passed to `tell`: all objectives present and numeric, no second result."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainwright.errors import ObjectiveError, TrialError
from trainwright.ledger import Objective, TrialState
from trainwright.ledger.objectives import Outcome

__all__ = ["second_result_error", "validate_metrics"]


def validate_metrics(outcomes: Sequence[Outcome], metrics: Mapping[str, Any], number: int | None) -> dict[str, float]:
    """Return the metrics of trial `number` as floats; raises `ObjectiveError` naming what is missing or no number."""
    where = "tell" if number is None else f"trial {number}"
    for outcome in outcomes:
        if outcome.metric not in metrics:
            got = ", ".join(sorted(metrics)) or "nothing"
            raise ObjectiveError(f"{where}: {outcome.word} {outcome.metric!r} is missing; got: {got}")
    # Any metric is a number as an objective is; the sentence of a wrong one is the same.
    any_objective = next(outcome for outcome in outcomes if isinstance(outcome, Objective))
    return {name: replace(any_objective, metric=name).number(value, where) for name, value in metrics.items()}


def second_result_error(trial: TrialState, metrics: Mapping[str, Any]) -> TrialError:
    """Return the error of a second result for one trial."""
    now = ", ".join(f"{name}={value!r}" for name, value in metrics.items())
    had = ", ".join(f"{name}={value:g}" for name, value in trial.values.items())
    has = f"already has {had}" if had else f"has already ended ({trial.status})"
    return TrialError(
        f"trial {trial.number} {has}; pass repeat=True to record {now or 'this'} as a new trial of the same "
        "configuration"
    )
