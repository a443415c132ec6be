"""The trials of a study as runs of MLflow: one run for the study, and nested in it one for each trial.

Tags tell whose they are (`trainwright.study`, `trainwright.trial`), so that to export again adds only what is new; a
run that was left unfinished is deleted and written anew.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.errors import InputError, MissingExtra
from trainwright.ledger import Status, TrialState
from trainwright.ledger.rows import first_start
from trainwright.report.exports import FinishedTrials, metric_points

__all__ = ["export_mlflow"]

_STUDY, _TRIAL = "trainwright.study", "trainwright.trial"
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # what MLflow takes at once
_STATUS = {Status.COMPLETE: "FINISHED", Status.STOPPED: "KILLED", Status.FAILED: "FAILED", Status.ABANDONED: "KILLED"}


def export_mlflow(directory: str | Path, uri: str) -> str:
    """Write the ended trials of the study in `directory` as runs of the MLflow store at `uri`.

    The experiment, whose id is returned, has the name of the study's directory. Runs that are there are not written
    anew; lost trials wait until it is settled what becomes of them.
    """
    with MissingExtra.instead_of_import_error("the MLflow export", "mlflow", "mlflow"):
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    finished = FinishedTrials(directory)
    try:
        client = MlflowClient(tracking_uri=uri)
        experiment = _find_experiment(client, finished.name)
        parent, known = _find_runs(client, experiment, finished)
        for trial in finished.trials:
            # Trials that the store has already, from an earlier export, are not written twice.
            if trial.number not in known:
                _write_trial(client, experiment, trial, {_STUDY: finished.study_id, "mlflow.parentRunId": parent})
    except MlflowException as error:
        said = str(error).split("\n", 1)[0].split(". ", 1)[0]
        raise InputError(f"MLflow at {uri}: {said}") from error
    return experiment


def _find_experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage != "active":
        raise InputError(f"MLflow: experiment {name!r} has been deleted; restore it, or remove it there")
    return str(client.create_experiment(name) if found is None else found.experiment_id)


def _find_runs(client: Any, experiment: str, finished: FinishedTrials) -> tuple[str, set[int]]:
    """Return the study's run, made if it is not there, and the numbers of the trials that are there."""
    parent, known, token = None, set(), None
    while token != "":
        page = client.search_runs([experiment], f"tags.`{_STUDY}` = '{finished.study_id}'", page_token=token)
        for run in page:
            number = run.data.tags.get(_TRIAL)
            if number is None:
                parent = run.info.run_id
            elif run.info.status == "RUNNING":
                client.delete_run(run.info.run_id)
            else:
                known.add(int(number))
        token = page.token or ""
    if parent is None:
        goals = ", ".join(map(str, finished.state.objectives))
        tags = {_STUDY: finished.study_id, "trainwright.objectives": goals}
        parent = client.create_run(experiment, tags=tags, run_name=finished.name).info.run_id
        client.log_param(parent, "seed", str(finished.state.seed))
        client.set_terminated(parent)
    return str(parent), known


def _write_trial(client: Any, experiment: str, trial: TrialState, tags: Mapping[str, str]) -> None:
    """Write a trial as a run within the study's run."""
    from mlflow.entities import Metric, Param

    started, ended = first_start(trial), _to_milliseconds(trial.end.at) if trial.end is not None else 0
    failure = {} if trial.failure is None else {"trainwright.failure": f"{trial.failure.kind}: {trial.failure.message}"}
    run = client.create_run(
        experiment,
        start_time=ended if started is None else _to_milliseconds(started),
        # With its tags from the start, a run that is left half written is found again.
        tags={**tags, _TRIAL: str(trial.number), "trainwright.state": trial.status.value, **failure},
        run_name=f"trial-{trial.number:06d}",
    ).info.run_id
    texts = {name: it if isinstance(it, str) else json.dumps(it) for name, it in trial.params.items()}
    params = [Param(_metric_key(name), text) for name, text in texts.items()]
    metrics = [
        Metric(_metric_key(name), value, _to_milliseconds(at), epoch)
        for at, epoch, values in metric_points(trial)
        for name, value in values.items()
    ]
    for at in range(0, len(params), _MOST_PARAMS):
        client.log_batch(run, params=params[at : at + _MOST_PARAMS])
    for at in range(0, len(metrics), _MOST_METRICS):
        client.log_batch(run, metrics=metrics[at : at + _MOST_METRICS])
    client.set_terminated(run, status=_STATUS[trial.status], end_time=ended)


def _metric_key(name: str) -> str:
    """Return a name of the characters that MLflow allows."""
    return re.sub(r"[^\w.\- /]", "_", name)


def _to_milliseconds(seconds: float) -> int:
    return int(1000 * seconds)
