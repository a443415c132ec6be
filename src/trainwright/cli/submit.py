"""`trainwright submit FILE`: batch jobs that work on the study of a file, one after another until it is done."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.command import Result, options_of
from trainwright.cli.submission.job import SCRIPT, Job, make_script
from trainwright.cli.submission.jobs import make_submission, queue_states, run_command, submissions
from trainwright.cli.submission.systems import SYSTEMS
from trainwright.cli.workflow.study_file import read_job
from trainwright.errors import InputError
from trainwright.publishing import write_file

__all__ = ["submit"]

_SCALARS = (
    "minutes",
    "system",
    "nodes",
    "tasks_per_node",
    "cores_per_task",
    "gpus_per_node",
    "workers",
    "gang",
    "account",
    "partition",
    "name",
    "chain",
    "container",
)


@options_of(Job, *_SCALARS)
def submit(
    file: Annotated[Path, typer.Argument(help="A study file (.toml) with a table [job].")],
    *,
    directory: Annotated[Path | None, typer.Option(help="Where to keep the study.")] = None,
    changes: dict[str, Any],
    show: Annotated[bool, typer.Option("--show", help="Print the script and submit nothing.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the study's jobs that have not ended.")] = False,
) -> Result:
    """Write the script of a batch job and submit it; each job submits the next, until the study is done.

    Slurm's jobs are submitted. For PBS, LSF and Flux the script is written, and the command told that submits it.
    """
    study = read_job(file, directory=directory)
    if file.suffix != ".toml":
        raise InputError(f"submit: got {file}; allowed: a study file (.toml) with a table [job]")
    table = {**study.tables.get("job", {}), **changes}
    if cancel:
        return _cancel(study.folder)
    job = Job.from_table(table, f"{file}, [job]")
    if show:
        script = make_script(job, file.resolve(), study.folder.resolve() / "jobs" / "1")
        return Result({"script": script}, lambda: print(script, end=""))
    system = SYSTEMS[job.system]
    if job.system == "slurm" and shutil.which("sbatch") is None:
        raise InputError("submit: there is no sbatch here; run it on a login node of Slurm, or give --show or --system")
    folder = study.folder
    # A study that cannot be opened is better known now than when the job runs.
    study.open_study().close()
    submission = make_submission(folder, job.system)
    script_path = submission.folder / SCRIPT
    write_file(script_path, make_script(job, file.resolve(), submission.folder), mode=0o755)
    command = system.submit.format(script=script_path)
    if job.system != "slurm":
        return Result({"script": str(script_path), "command": command}, lambda: print(f"to submit:  {command}"))
    number = run_command([*command.split()[:-1], str(script_path)]).partition(";")[0]
    submission.add(number)
    return Result(
        {"script": str(script_path), "job": number},
        lambda: print(f"job {number}: {script_path}\nto look:    trainwright status {study.folder}"),
    )


def _cancel(folder: Path) -> Result:
    """Cancel the jobs of a study that have not ended, successors first, so that none of these starts meanwhile."""
    alive = [job for job, state in queue_states(folder).items() if state not in {"ended", "submitted"}]
    for job in reversed(alive):
        run_command([SYSTEMS["slurm"].cancel, job])
    others = {one.system for one in submissions(folder)} - {"slurm"}
    if others:
        raise InputError(f"submit: cancels Slurm's jobs only; use `{SYSTEMS[min(others)].cancel}` for the others")
    return Result({"cancelled": alive}, lambda: print(f"cancelled: {', '.join(alive) or 'no job'}"))
