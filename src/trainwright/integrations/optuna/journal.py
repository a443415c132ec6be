"""The trials of a study as a journal of Optuna's, for `optuna.load_study` and optuna-dashboard; Optuna writes it.

Optuna numbers trials by itself; our number is the user attribute `tw_number`. What a journal cannot hold: several
metrics per step (the other objectives' curves), a pause, values that are not finite.
"""

import json
import math
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainwright.errors import InputError, MissingExtra
from trainwright.ledger import Status
from trainwright.ledger.rows import final_metrics, first_start
from trainwright.publishing import write_file
from trainwright.report.exports import FinishedTrials
from trainwright.report.files import target, write
from trainwright.space import Choice, Constant, Float, Int, Space
from trainwright.space.parameters import Parameter

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["export_optuna_journal"]

_STATES = {Status.COMPLETE: "COMPLETE", Status.STOPPED: "PRUNED"}
_DIRECTIONS: Mapping[str, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}
_MARK = "trainwright_study"


def export_optuna_journal(directory: str | Path, file: str | Path) -> Path:
    """Write the ended trials of the study in `directory`, in the order of their numbers. Needs the extra `optuna`.

    A file that is there already is replaced if it is such an export and Optuna has added nothing to it, else refused.
    """
    with MissingExtra.instead_of_import_error("the export to Optuna's journal", "optuna", "optuna"):
        import optuna
    path = target(directory, file)
    finished = FinishedTrials(directory, lost=True)
    objectives = finished.state.objectives
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # A study's name of metrics is a feature that Optuna calls experimental.
        warnings.simplefilter("ignore")
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            if path.exists():
                _refuse_foreign(path)
            draft = Path(folder) / "journal"
            directions = [_DIRECTIONS[objective.direction] for objective in objectives]
            study = optuna.create_study(storage=_storage(draft), study_name=finished.name, directions=directions)
            study.set_metric_names([objective.metric for objective in objectives])
            study.set_user_attr(_MARK, finished.study_id)
            study.add_trials(_make_trials(finished))
        finally:
            optuna.logging.set_verbosity(verbosity)
        write(path, draft.read_bytes())
    return path


def _storage(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))


def _refuse_foreign(path: Path) -> None:
    """Raise `InputError` if `path` holds anything but an earlier export."""
    with tempfile.TemporaryDirectory() as folder:
        # Optuna locks a journal by a file beside it, for which there may be no place.
        copy = Path(folder) / "journal"
        try:
            write_file(copy, path.read_bytes())
            studies: list[Study] = _storage(copy).get_all_studies()
            trials = [trial for study in studies for trial in _storage(copy).get_all_trials(study._study_id)]  # noqa: SLF001
            ours = bool(studies) and all(_MARK in study.user_attrs for study in studies)
            ours = ours and all("tw_number" in trial.user_attrs for trial in trials)
        except OSError as error:
            raise InputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
        except Exception:  # noqa: BLE001 -- whatever Optuna says of a file that is no journal
            ours = False
    if not ours:
        raise InputError(
            f"cannot write {path}: it holds what this export did not write; choose another name or move it"
        )


def _make_trials(finished: FinishedTrials) -> Iterable["FrozenTrial"]:
    from optuna.trial import TrialState as State
    from optuna.trial import create_trial

    parameters = Space.from_json(finished.state.space or {}).parameters
    found = {name: _to_distribution(parameter) for name, parameter in parameters.items()}
    distributions = {name: shape for name, shape in found.items() if shape is not None}
    for trial in finished.trials:
        # Objectives are Optuna's values; all other metrics become user attributes.
        metrics = dict(final_metrics(trial))
        goals = [metrics.pop(objective.metric, math.nan) for objective in finished.state.objectives]
        values = goals if all(map(math.isfinite, goals)) else None
        # Lost and abandoned trials have failed, as far as Optuna has words; so has a completed one without values.
        state = _STATES.get(trial.status, "FAIL")
        state = "FAIL" if state == "COMPLETE" and values is None else state
        params = {name: _external(parameters.get(name), value) for name, value in trial.params.items()}
        attributes: dict[str, Any] = {"tw_number": trial.number, "tw_state": trial.status.value}
        attributes |= {name: value for name, value in params.items() if name not in distributions}
        attributes |= {name: value for name, value in metrics.items() if math.isfinite(value)}
        if trial.failure is not None:
            attributes["tw_failure"] = f"{trial.failure.kind}: {trial.failure.message}"
        metric = finished.state.objectives[0].metric
        curve = {epoch: report.metrics.get(metric, math.nan) for epoch, report in sorted(trial.reports.items())}
        made = create_trial(
            state=State[state],
            values=values if state != "FAIL" else None,
            params={name: value for name, value in params.items() if name in distributions},
            distributions={name: shape for name, shape in distributions.items() if name in params},
            user_attrs=attributes,
            intermediate_values={epoch: value for epoch, value in curve.items() if math.isfinite(value)},
        )
        # Optuna knows no trial that has ended without both times; of a lost one the end is when it was last heard of.
        began = first_start(trial)
        ended = trial.end.at if trial.end is not None else (began or 0.0) + trial.seconds
        made.datetime_start, made.datetime_complete = _time(ended if began is None else began), _time(ended)
        yield made


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds)  # noqa: DTZ006 -- Optuna's times are local, without a zone


def _to_distribution(parameter: Parameter) -> "BaseDistribution | None":
    """Return Optuna's distribution of a parameter; None for a derived value."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choice | Constant):
        return CategoricalDistribution([_external(parameter, value) for value in _values(parameter)])
    if isinstance(parameter, Float):
        low, high, step = parameter.low, parameter.high, parameter.step
        # Optuna wants the last point of the grid.
        high = high if step is None else low + math.floor((high - low) / step + 1e-9) * step
        return FloatDistribution(low, high, log=parameter.log, step=step)
    if isinstance(parameter, Int):
        low, step = parameter.low, parameter.step or 1
        return IntDistribution(low, low + (parameter.high - low) // step * step, log=parameter.log, step=step)
    return None


def _values(parameter: Choice | Constant) -> tuple[Any, ...]:
    return parameter.values if isinstance(parameter, Choice) else (parameter.value,)


def _external(parameter: Parameter | None, value: Any) -> Any:
    """Return a value as Optuna's choices are: scalars, no two of them equal; others leave as their JSON texts."""
    # To Optuna 1 and True are one choice.
    alike = isinstance(parameter, Choice) and len(set(parameter.values)) < len(parameter.values)
    return json.dumps(value) if alike or isinstance(value, tuple | list) else value
