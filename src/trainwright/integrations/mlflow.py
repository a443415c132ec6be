"""The trials of a study as runs of MLflow: one run for the study, and nested in it one for each trial.

Tags tell whose they are (`trainwright.study`, `trainwright.trial`), so that to export again adds only what is new; a
run that was left unfinished is deleted and written anew.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from trainwright.errors import InputError, MissingExtra
from trainwright.ledger import Status, TrialState
from trainwright.ledger.rows import first_start
from trainwright.report.tabular import FinishedTrials, metric_points

__all__ = ["export_mlflow"]

_STUDY, _TRIAL = "trainwright.study", "trainwright.trial"
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # what MLflow takes at once
_STATUS = {Status.COMPLETE: "FINISHED", Status.STOPPED: "KILLED", Status.FAILED: "FAILED", Status.ABANDONED: "KILLED"}


def export_mlflow(directory: str | Path, uri: str) -> str:
    """Write the ended trials of the study in `directory` as runs of the MLflow store at `uri`.

    The experiment, whose id is returned, has the name of the study's directory. Runs that are there are not written
    anew; lost trials wait until it is settled what becomes of them.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise MissingExtra.of("the MLflow export", "mlflow", "mlflow") from None
    finished = FinishedTrials(directory)
    try:
        store = _Store(MlflowClient(tracking_uri=uri), uri, finished)
        parent, known = store.find_runs()
        for trial in finished.trials:
            # Trials that the store has already, from an earlier export, are not written twice.
            if trial.number not in known:
                store.write_trial(trial, parent)
    except MlflowException as error:
        said = str(error).split("\n", 1)[0].split(". ", 1)[0]
        raise InputError(f"MLflow at {uri}: {said}") from error
    return store.experiment


class _Store:
    """The experiment of a study in an MLflow store."""

    def __init__(self, client: Any, uri: str, finished: FinishedTrials) -> None:
        self._client, self._uri, self._finished = client, uri, finished
        self.experiment = self._find_experiment(finished.name)

    def _find_experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name))
        if found.lifecycle_stage != "active":
            raise InputError(
                f"MLflow at {self._uri}: experiment {name!r} has been deleted; restore it, or remove it there"
            )
        return str(found.experiment_id)

    def find_runs(self) -> tuple[str, set[int]]:
        """Return the study's run, made if it is not there, and the numbers of the trials that are there."""
        parent, known, token = None, set(), None
        while token != "":
            page = self._client.search_runs(
                [self.experiment], f"tags.`{_STUDY}` = '{self._finished.study_id}'", page_token=token
            )
            for run in page:
                number = run.data.tags.get(_TRIAL)
                if number is None:
                    parent = run.info.run_id
                elif run.info.status == "RUNNING":
                    self._client.delete_run(run.info.run_id)
                else:
                    known.add(int(number))
            token = page.token or ""
        return parent or self._study_run(), known

    def _study_run(self) -> str:
        state = self._finished.state
        tags = {_STUDY: self._finished.study_id, "trainwright.objectives": ", ".join(map(str, state.objectives))}
        run = self._client.create_run(self.experiment, tags=tags, run_name=self._finished.name)
        self._client.log_param(run.info.run_id, "seed", str(state.seed))
        self._client.set_terminated(run.info.run_id)
        return str(run.info.run_id)

    def write_trial(self, trial: TrialState, parent: str) -> None:
        """Write a trial as a run within the study's run, `parent`."""
        from mlflow.entities import Metric, Param

        started, ended = first_start(trial), _to_milliseconds(trial.end.at) if trial.end is not None else 0
        tags = {
            _STUDY: self._finished.study_id,
            _TRIAL: str(trial.number),
            "trainwright.state": trial.status.value,
            "mlflow.parentRunId": parent,
        }
        if trial.failure is not None:
            tags["trainwright.failure"] = f"{trial.failure.kind}: {trial.failure.message}"
        run = self._client.create_run(
            self.experiment,
            start_time=ended if started is None else _to_milliseconds(started),
            tags=tags,  # with it from the start: a run that is left half written is found again
            run_name=f"trial-{trial.number:06d}",
        ).info.run_id
        params = [Param(_metric_key(name), _param_text(value)) for name, value in trial.params.items()]
        metrics = [
            Metric(_metric_key(name), value, _to_milliseconds(at), epoch)
            for at, epoch, values in metric_points(trial)
            for name, value in values.items()
        ]
        chunks = max(math.ceil(len(params) / _MOST_PARAMS), math.ceil(len(metrics) / _MOST_METRICS))
        for i in range(chunks):  # mostly one, which is one transaction
            self._client.log_batch(
                run,
                metrics=metrics[i * _MOST_METRICS : (i + 1) * _MOST_METRICS],
                params=params[i * _MOST_PARAMS : (i + 1) * _MOST_PARAMS],
            )
        self._client.set_terminated(run, status=_STATUS[trial.status], end_time=ended)


def _metric_key(name: str) -> str:
    """Return a name of the characters that MLflow allows."""
    return re.sub(r"[^\w.\- /]", "_", name)


def _param_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _to_milliseconds(seconds: float) -> int:
    return int(1000 * seconds)
