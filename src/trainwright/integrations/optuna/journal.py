"""The trials of a study as an Optuna journal, for `optuna.load_study` and optuna-dashboard; needs no Optuna itself.

A journal is one JSON object per line (operation codes as in `optuna.storages.journal`): 0 creates the study, 3 names
its metrics, 4 adds a trial that has ended. Optuna numbers trials by their lines; our number is in `tw_number`.
What it cannot hold: several metrics per step (the other objectives' curves), a pause, values that are not finite.
"""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.ledger import State, Status, TrialState
from trainwright.ledger.rows import final_metrics, first_start
from trainwright.report.files import target, write
from trainwright.report.tabular import FinishedTrials
from trainwright.space import Choice, Constant, Float, Int, Space

__all__ = ["export_optuna_journal"]

_WRITER = "trainwright-"
_CODES = {
    Status.COMPLETE: 1,
    Status.STOPPED: 2,
    Status.FAILED: 3,
    Status.LOST: 3,
    Status.ABANDONED: 3,
}


def export_optuna_journal(directory: str | Path, file: str | Path) -> Path:
    """Write the ended trials of the study in `directory`, in the order of their numbers.

    A file that is there already is replaced if it is such an export and Optuna has added nothing to it, else refused.
    """
    path = target(directory, file)
    finished = FinishedTrials(directory, lost=True)
    _refuse_foreign(path)
    journal = _Journal(finished)
    write(path, "".join([*journal.head(finished.name), *map(journal.line_of, finished.trials)]))
    return path


class _Journal:
    """The lines of a study's journal."""

    def __init__(self, finished: FinishedTrials) -> None:
        self._objectives = finished.state.objectives
        self._writer = f"{_WRITER}{finished.study_id}"
        self._parameters = _parameters(finished.state)

    def head(self, name: str) -> Iterable[str]:
        """Yield the lines that create the study and name its metrics."""
        directions = [1 if objective.direction == "min" else 2 for objective in self._objectives]
        yield self._line(0, study_name=name, directions=directions)
        names = [objective.metric for objective in self._objectives]
        yield self._line(3, study_id=0, system_attr={"study:metric_names": names})

    def line_of(self, trial: TrialState) -> str:
        """Return the line that adds a trial."""
        objectives, metrics = self._objectives, dict(final_metrics(trial))
        # Objectives are Optuna's values; all other metrics become user attributes.
        goals = [metrics.pop(objective.metric, math.nan) for objective in objectives]
        values = goals if all(map(math.isfinite, goals)) else None
        # Lost and abandoned trials have failed, as far as Optuna has words.
        code = _CODES[trial.status]
        if code == 1 and values is None:
            code = 3  # Optuna knows no completed trial without values
        metric = objectives[0].metric
        curve = {epoch: report.metrics.get(metric, math.nan) for epoch, report in sorted(trial.reports.items())}
        params, distributions, others = self._coordinates(trial)
        attributes = {"tw_number": trial.number, "tw_state": trial.status.value, **others}
        attributes |= {name: value for name, value in metrics.items() if math.isfinite(value)}
        if trial.failure is not None:
            attributes["tw_failure"] = f"{trial.failure.kind}: {trial.failure.message}"
        return self._line(
            4,
            study_id=0,
            state=code,
            value=values[0] if values is not None and len(values) == 1 else None,
            values=values if values is not None and len(values) > 1 else None,
            params=params,
            distributions=distributions,
            user_attrs=attributes,
            system_attrs={},
            intermediate_values={epoch: value for epoch, value in curve.items() if math.isfinite(value)},
            **_times(trial),
        )

    def _coordinates(self, trial: TrialState) -> tuple[dict[str, float], dict[str, str], dict[str, Any]]:
        """Return internal values, distributions, and what has no distribution: derived values."""
        internal: dict[str, float] = {}
        distributions: dict[str, str] = {}
        others: dict[str, Any] = {}
        for name, value in trial.params.items():
            distribution, places = self._parameters.get(name, ("", None))
            if not distribution:
                others[name] = value
                continue
            internal[name] = value if places is None else places[json.dumps(value)]
            distributions[name] = distribution
        return internal, distributions, others

    def _line(self, code: int, **fields: Any) -> str:
        content = {"op_code": code, "worker_id": self._writer, **fields}
        return json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"


def _parameters(state: State) -> dict[str, tuple[str, Mapping[str, int] | None]]:
    """Return, by name, the distribution's JSON text and, for choices, each value's place by its JSON text."""
    found: dict[str, tuple[str, Mapping[str, int] | None]] = {}
    for name, parameter in Space.from_json(state.space or {}).parameters.items():
        if isinstance(parameter, Float | Int):
            found[name] = json.dumps(_number_distribution(parameter)), None
        elif isinstance(parameter, Choice | Constant):
            values = parameter.values if isinstance(parameter, Choice) else (parameter.value,)
            # Optuna's choices are scalars; a tuple leaves as its JSON text.
            choices = [json.dumps(value) if isinstance(value, tuple | list) else value for value in values]
            distribution = {"name": "CategoricalDistribution", "attributes": {"choices": choices}}
            found[name] = json.dumps(distribution), {json.dumps(value): place for place, value in enumerate(values)}
    return found


def _number_distribution(parameter: Float | Int) -> dict[str, Any]:
    low, high, step = parameter.low, parameter.high, parameter.step
    kind = "Int" if isinstance(parameter, Int) else "Float"
    if step is not None:  # Optuna wants the last point of the grid
        high = low + math.floor((high - low) / step + 1e-9) * step
    elif kind == "Int":
        step = 1
    bounds = {"log": parameter.log, "step": step, "low": low, "high": high}
    return {"name": f"{kind}Distribution", "attributes": bounds}


def _times(trial: TrialState) -> dict[str, str | None]:
    started = first_start(trial)
    times = {"datetime_start": None if started is None else _iso(started)}
    if trial.end is not None:
        times["datetime_complete"] = _iso(trial.end.at)
    return times


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def _refuse_foreign(path: Path) -> None:
    """Raise `InputError` if `path` holds anything but lines of an earlier export."""
    # Each line of ours names its writer near its start; a foreign line has another.
    mark = f'"worker_id":"{_WRITER}'.encode()
    try:
        with path.open("rb") as file:
            ours = all(mark in line[:100] for line in file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
    if not ours:
        raise InputError(
            f"cannot write {path}: it holds what this export did not write; choose another name or move it"
        )
