"""The trials of a study as runs of MLflow: one run for the study, and nested in it one for each trial.

Tags tell whose they are (`trainwright.study`, `trainwright.trial`), so that to export again adds only what is new; a
run that was left unfinished is deleted and written anew.
"""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.errors import InputError, MissingExtra
from trainwright.ledger import Status, TrialState
from trainwright.ledger.rows import first_start
from trainwright.report.finished_trials import FinishedTrials, metric_points

if TYPE_CHECKING:
    pass

__all__ = ["MLflowRuns"]

_STUDY, _TRIAL = "trainwright.study", "trainwright.trial"
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # what MLflow takes at once
_STATUS = {Status.COMPLETE: "FINISHED", Status.STOPPED: "KILLED", Status.FAILED: "FAILED", Status.ABANDONED: "KILLED"}


class MLflowRuns:
    """The ended trials of the study in `directory`, or its `last` ones, as runs of the MLflow store at `uri`.

    The experiment has the name of the study's directory. Each `update` adds the trials that have ended since; lost
    trials wait until it is settled what becomes of them.
    """

    def __init__(self, directory: str | Path, uri: str, *, last: int | None = None) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtra.of("the MLflow export", "mlflow", "mlflow") from None
        self.finished = FinishedTrials(directory, last=last)
        self.uri = uri
        with self._explain_errors():
            self._client = MlflowClient(tracking_uri=uri)
            self.experiment: str = self._find_experiment(self.finished.name)
            self._parent, self._known = self._find_runs()
        self.update()

    def update(self) -> int:
        """Add the trials that have ended since the last call and are not there; returns how many."""
        self.finished.read()
        # Trials that the store has already, from an earlier export, are not written twice.
        trials = [trial for trial in self.finished.news() if trial.number not in self._known]
        for trial in trials:
            with self._explain_errors():
                self._write_trial(trial)
        return len(trials)

    def _find_experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name))
        if found.lifecycle_stage != "active":
            raise InputError(
                f"MLflow at {self.uri}: experiment {name!r} has been deleted; restore it, or remove it there"
            )
        return str(found.experiment_id)

    def _find_runs(self) -> tuple[str, set[int]]:
        """Return the study's run, made if it is not there, and the numbers of the trials that are there."""
        parent, known, token = None, set(), None
        while token != "":
            page = self._client.search_runs(
                [self.experiment], f"tags.`{_STUDY}` = '{self.finished.study_id}'", page_token=token
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
        state = self.finished.state
        tags = {_STUDY: self.finished.study_id, "trainwright.objectives": ", ".join(map(str, state.objectives))}
        run = self._client.create_run(self.experiment, tags=tags, run_name=self.finished.name)
        self._client.log_param(run.info.run_id, "seed", str(state.seed))
        self._client.set_terminated(run.info.run_id)
        return str(run.info.run_id)

    def _write_trial(self, trial: TrialState) -> None:
        from mlflow.entities import Metric, Param

        started, ended = first_start(trial), _to_milliseconds(trial.end.at) if trial.end is not None else 0
        tags = {
            _STUDY: self.finished.study_id,
            _TRIAL: str(trial.number),
            "trainwright.state": trial.status.value,
            "mlflow.parentRunId": self._parent,
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
        self._known.add(trial.number)

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Tell what MLflow refuses in one sentence."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            said = str(error).split("\n", 1)[0].split(". ", 1)[0]
            raise InputError(f"MLflow at {self.uri}: {said}") from error


def _metric_key(name: str) -> str:
    """Return a name of the characters that MLflow allows."""
    return re.sub(r"[^\w.\- /]", "_", name)


def _param_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _to_milliseconds(seconds: float) -> int:
    return int(1000 * seconds)
