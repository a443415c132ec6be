"""A study as a table: one flat row per trial, for data frames and files."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainwright.ledger.fold import State
from trainwright.ledger.trials import TrialState

__all__ = ["columns", "final_metrics", "first_start", "rows"]

_FIXED = ("number", "state", "epochs", "seconds", "device_seconds", "started_at", "ended_at", "failure")


def rows(state: State) -> list[dict[str, Any]]:
    """Return one row per trial, in the order of their numbers; every row has the same columns.

    `number, state, params.NAME ..., values.METRIC ..., epochs, seconds, device_seconds, started_at, ended_at, failure`;
    None where a parameter is inactive, a trial has no result, or it did not fail. Times are wall seconds since 1970.
    """
    trials = [state.trials[number] for number in sorted(state.trials)]
    metrics = [final_metrics(trial) for trial in trials]
    in_space = [parameter["name"] for parameter in (state.space or {}).get("parameters", [])]
    params = dict.fromkeys([*in_space, *(name for trial in trials for name in trial.params)])
    seen = {name for trial in trials for name in trial.params}
    names = [name for name in params if name in seen]
    objectives = [objective.metric for objective in state.objectives]
    measured = list(dict.fromkeys([*objectives, *(name for values in metrics for name in values)]))
    return [
        {
            "number": trial.number,
            "state": trial.status.value,
            **{f"params.{name}": trial.params.get(name) for name in names},
            **{f"values.{name}": values.get(name) for name in measured},
            "epochs": trial.epoch,
            "seconds": trial.seconds,
            "device_seconds": trial.device_seconds,
            "started_at": first_start(trial),
            "ended_at": trial.end.at if trial.status.ended and trial.end is not None else None,
            "failure": f"{trial.failure.kind}: {trial.failure.message}" if trial.failure is not None else None,
        }
        for trial, values in zip(trials, metrics, strict=True)
    ]


def columns(state: State) -> dict[str, list[Any]]:
    """Return the same table by columns, each of one type; one whose values are of several becomes their JSON texts."""
    table = rows(state)
    names = list(table[0]) if table else _FIXED
    return {name: _uniform([row[name] for row in table]) for name in names}


def final_metrics(trial: TrialState) -> Mapping[str, float]:
    """Return the metrics that a trial's result stands for: its last report's, then what it ended with; else nothing."""
    if not trial.has_result:
        return {}
    last = trial.reports.get(trial.epoch)
    return {**(last.metrics if last is not None else {}), **trial.values}


def first_start(trial: TrialState) -> float | None:
    """Return when a trial began to run for the first time, None if nobody knows."""
    return min((lease.started_at for lease in trial.leases.values() if lease.started_at is not None), default=None)


def _uniform(values: Sequence[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) <= 1 and kinds <= {bool, int, float, str}:
        return list(values)
    return [None if value is None else json.dumps(value) for value in values]
