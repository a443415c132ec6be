"""`trainwright submit FILE`: batch jobs that work on the study of a file, one after another until it is done."""

import shutil
from pathlib import Path
from typing import Annotated, Any, get_origin

from trainwright.cli.batch_job import SCRIPT, SUBMITTED, Job, make_folder, make_script, run_command
from trainwright.cli.batch_systems import SYSTEMS
from trainwright.cli.command import Argument, Option, Result, options_of
from trainwright.cli.workflow.study_file import read_job
from trainwright.errors import InputError
from trainwright.publishing import write_file
from trainwright.settings import settings_of

__all__ = ["submit"]

_OPTIONS = tuple(field.name for field in settings_of(Job) if get_origin(field.type) is not list)


@options_of(Job, *_OPTIONS, grace_seconds="--grace")
def submit(
    file: Annotated[Path, Argument(help="A study file (.toml) with a table [job].")],
    *,
    directory: Annotated[Path | None, Option(help="Where to keep the study.")] = None,
    changes: dict[str, Any],
    show: Annotated[bool, Option("--show", help="Print the script and submit nothing.")] = False,
) -> Result:
    """Write the script of a batch job and submit it; each job submits the next, until the study is done.

    Slurm's jobs are submitted. For PBS, LSF and Flux the script is written, and the command told that submits it.
    """
    study = read_job(file, directory=directory)
    if file.suffix != ".toml":
        raise InputError(f"submit: got {file}; allowed: a study file (.toml) with a table [job]")
    job = Job.from_table({**study.tables.get("job", {}), **changes}, f"{file}, [job]")
    if show:
        script = make_script(job, file.resolve(), study.folder.resolve() / "jobs" / "1")
        return Result({"script": script}, lambda: print(script, end=""))
    if job.system == "slurm" and shutil.which("sbatch") is None:
        raise InputError("submit: no sbatch here; run it on a login node of Slurm, or give --show or --system")
    # A study that cannot be opened is better known now than when the job runs.
    study.open_study().close()
    folder = make_folder(study.folder)
    script_path = folder / SCRIPT
    write_file(script_path, make_script(job, file.resolve(), folder), mode=0o755)
    command = SYSTEMS[job.system].submit.format(script=script_path)
    if job.system != "slurm":
        return Result({"script": str(script_path), "command": command}, lambda: print(f"to submit:  {command}"))
    number = run_command([*command.split()[:-1], str(script_path)]).partition(";")[0]
    with (folder / SUBMITTED).open("a", encoding="utf-8") as submitted:
        submitted.write(f"{number}\n")
    return Result(
        {"script": str(script_path), "job": number},
        lambda: print(f"job {number}: {script_path}\nto look:    trainwright status {study.folder}"),
    )
