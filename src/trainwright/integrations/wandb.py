"""The trials of a study as runs of Weights & Biases: one run for each trial, all in a group of the study's name.

A run's id is a function of study and trial, so to export again adds only what is new. With WANDB_MODE=offline runs are
written below `wandb/`, and `wandb sync` sends them from a node that has a network.
"""

import os
import re
from pathlib import Path
from typing import Any

from trainwright.errors import InputError, MissingExtra
from trainwright.ledger import Status, TrialState
from trainwright.report.exports import FinishedTrials, metric_points

__all__ = ["export_wandb"]

_EXIT_CODES = {Status.COMPLETE: 0, Status.STOPPED: 0}


def export_wandb(directory: str | Path, project: str) -> str:
    """Write the ended trials of the study in `directory` as runs of a project, "NAME" or "ENTITY/NAME"; return it.

    Lost trials wait until it is settled what becomes of them. Raises `InputError` without a login, if it is not
    offline.
    """
    with MissingExtra.instead_of_import_error("the export to Weights & Biases", "wandb", "wandb"):
        import wandb
    offline = os.environ.get("WANDB_MODE") in {"offline", "dryrun"}
    if not offline and not wandb.api.api_key:
        raise InputError(
            f"Weights & Biases: this machine has no login for project {project!r}; run `wandb login`, or set "
            "WANDB_MODE=offline and run `wandb sync` later"
        )
    entity, _, name = project.rpartition("/")
    finished = FinishedTrials(directory)
    known = _find_offline() if offline else _find_online(wandb, project, finished.study_id)
    for trial in finished.trials:
        if _run_id(finished.study_id, trial) not in known:
            _write_run(wandb, finished, trial, entity=entity or None, project=name)
    return project


def _run_id(study: str, trial: TrialState) -> str:
    return f"{study}-{trial.number:06d}"


def _find_offline() -> set[str]:
    """Return the ids of the runs that lie here: their folders are named `offline-run-TIME-ID`."""
    home = Path(os.environ.get("WANDB_DIR", ".")) / "wandb"
    return {re.sub(r"^offline-run-[\d_]+-", "", folder.name) for folder in home.glob("offline-run-*")}


def _find_online(wandb: Any, project: str, study: str) -> set[str]:
    """Return the ids of the study's runs that the server has; none if there is no such project yet."""
    try:
        runs = wandb.Api().runs(project, filters={"config.trainwright.value.study": study})
        return {run.id for run in runs}
    except (ValueError, wandb.errors.CommError):
        return set()


def _write_run(wandb: Any, finished: FinishedTrials, trial: TrialState, **place: Any) -> None:
    """Write a trial as a run: its parameters, a point of each report, its result as the summary."""
    told = {"study": finished.study_id, "trial": trial.number, "state": trial.status.value}
    if trial.failure is not None:
        told["failure"] = f"{trial.failure.kind}: {trial.failure.message}"
    try:
        run = wandb.init(
            **place,
            id=_run_id(finished.study_id, trial),
            name=f"trial-{trial.number:06d}",
            group=finished.name,
            config={**trial.params, "trainwright": told},
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
            reinit="create_new",
        )
        # In one step there is one point: what a result adds to its last report is a part of that.
        points: dict[int, dict[str, float]] = {}
        for at, epoch, metrics in metric_points(trial):
            points.setdefault(epoch, {}).update({**metrics, "_timestamp": at})
        for epoch, metrics in points.items():
            run.log(metrics, step=epoch)
        run.summary.update(dict(trial.values))
        run.finish(exit_code=_EXIT_CODES.get(trial.status, 1))
    except wandb.errors.Error as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"Weights & Biases: trial {trial.number} was not written: {said}") from error
