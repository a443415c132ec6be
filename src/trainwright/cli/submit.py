"""`trainwright submit FILE`: batch jobs that work on the study of a file, one after another until it is done.

A call has a folder `jobs/NUMBER` of its own: its script, and `submitted`, to which it and its jobs append the number of
each job, one a line.
"""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_origin

from trainwright.cli.batch_systems import SYSTEMS
from trainwright.cli.command import Argument, Option, Result, options_of
from trainwright.cli.workflow.study_file import read_job
from trainwright.errors import InputError, StudyError, TrainwrightError
from trainwright.publishing import write_file
from trainwright.report.formatting import count
from trainwright.settings import Settings, settings_of
from trainwright.validators import each, instance_of, integer, number, one_of, optional, text

__all__ = ["SCRIPT", "SUBMITTED", "Job", "make_folder", "make_script", "queue_states", "run_command", "submit"]

SCRIPT = "job.sh"
"""The name of the script in its folder."""
SUBMITTED = "submitted"
_FOLDER = "jobs"
_PATIENCE_SECONDS = 60.0

_AT_LEAST_ONE = optional(integer(minimum=1))
_LINES = each(instance_of(str), words="a list of texts, such as ['module load cuda']")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job(Settings, error=StudyError, label=""):
    """What a job of a batch system asks for, and what it runs before it works on the study.

    Each task is a worker of the study: by default one a node, which trains one trial on each of the node's GPUs.
    """

    minutes: Annotated[int, integer(minimum=1), "time limit of one job"]
    system: Annotated[str, one_of(*SYSTEMS), "batch system"] = "slurm"
    nodes: Annotated[int, integer(minimum=1), "nodes of a job"] = 1
    tasks_per_node: Annotated[int, integer(minimum=1), "workers on a node"] = 1
    cores_per_task: Annotated[int | None, _AT_LEAST_ONE, "processors of a worker"] = None
    gpus_per_node: Annotated[int | None, _AT_LEAST_ONE, "GPUs of a node"] = None
    workers: Annotated[int | None, _AT_LEAST_ONE, "trials at once in a worker; else one a GPU"] = None
    gang: Annotated[int, integer(minimum=1), "tasks, one a node, that share their trials"] = 1
    account: Annotated[str | None, optional(text("a name")), "account that is charged"] = None
    partition: Annotated[str | None, optional(text("a name")), "partition or queue"] = None
    name: Annotated[str, text("a name"), "name of the jobs"] = "trainwright"
    chain: Annotated[int, integer(minimum=1), "jobs at most, one after another"] = 10
    grace_seconds: Annotated[float, number(minimum=0), "seconds before the end that a job leaves for saving"] = 60.0
    requests: Annotated[list[str], _LINES, "further options of the batch system, a line each"] = field(
        default_factory=list
    )
    environment: Annotated[list[str], _LINES, "shell lines before the workers start"] = field(default_factory=list)
    container: Annotated[str | None, optional(text("a path or address")), "Apptainer image of the workers"] = None

    def check_together(self) -> None:
        """Refuse what no line of a script can hold, gangs that the nodes do not make up, and jobs that end for good."""
        tasks = self.nodes * self.tasks_per_node
        if self.gang > tasks:
            raise StudyError(
                f"gang: got {self.gang}, larger than a job, which has {count(tasks, 'task')}; give "
                f"nodes = {self.gang}, or a gang of {tasks} at most"
            )
        if tasks % self.gang:
            raise StudyError(
                f"gang: got {self.gang}, which does not divide the {tasks} tasks of a job; give a multiple of it"
            )
        if any("--no-requeue" in line for line in self.requests):
            raise StudyError(
                "requests: got --no-requeue, but a job that is preempted goes back into the queue, and its successor "
                "waits for it; leave it out"
            )
        for line in (*self.requests, *self.environment):
            if "\n" in line:
                raise StudyError(f"job: got a text of several lines, {line!r}; give a text for each")


_SCRIPT = """\
#!/bin/bash
{requests}

# Written by `trainwright submit`. Each job submits its successor first, so that one follows however this job ends, and
# cancels it when the study is done or has failed.
cd {here} || exit 1
{environment}
job="{job}"
next={folder}/"$job".next
# One that was put back into the queue has its successor already.
if [ "{restarts}" -eq 0 ] && [ "$(find {folder} -name '*.next' | wc -l)" -lt {successors} ]; then
  {successor} > "$next" && cat "$next" >> {folder}/submitted
fi

{launch} {worker}
status=$?

# 130: told to leave, or its time is over. 0: done. 1 and 2: it failed, and so would the next.
case $status in 0|1|2)
  if [ -s "$next" ]; then {cancel} "$(cat "$next")"; fi;;
esac
exit $status
"""


def make_script(job: Job, file: Path, folder: Path) -> str:
    """Return the script of a job that works on the study of `file`; its output goes to `folder`."""
    system = SYSTEMS[job.system]
    script = shlex.quote(str(folder / SCRIPT))
    marks = {"nodes": job.nodes, "tasks": job.nodes * job.tasks_per_node, "tasks_per_node": job.tasks_per_node}
    requests = system.requests(job, str(folder))
    mark = requests[0].partition(" ")[0]
    options = [] if job.workers is None else ["--workers", str(job.workers)]
    options += ["--gang", str(job.gang)] if job.gang > 1 else []
    worker = ["trainwright", "worker", str(file), *options, "--grace", f"{job.grace_seconds:g}"]
    # Where no end is known the worker leaves by its own clock, which starts later than the job's; Slurm tells it.
    clock = "" if job.system == "slurm" else f" --wall-seconds $(({60 * job.minutes} - SECONDS))"
    if job.container is not None:
        gpus = ["--nv"] if job.gpus_per_node else []
        worker = ["apptainer", "exec", *gpus, job.container, *worker]
    return _SCRIPT.format(
        requests="\n".join([*requests, *(f"{mark} {line}" for line in job.requests)]),
        here=shlex.quote(str(Path.cwd())),
        environment="\n".join(job.environment),
        job=system.job,
        successors=job.chain - 1,
        restarts=system.restarts,
        successor=system.successor.format(script=script),
        folder=shlex.quote(str(folder)),
        launch=system.launch.format(**marks),
        worker=shlex.join(worker) + clock,
        cancel=system.cancel,
    )


def make_folder(directory: Path) -> Path:
    """Return the folder of a new call for the study in `directory`."""
    home = directory.resolve() / _FOLDER
    number = 1 + max((int(folder.name) for folder in home.glob("[0-9]*")), default=0)
    folder = home / str(number)
    try:
        folder.mkdir(parents=True)
        (folder / SUBMITTED).touch()
    except OSError as error:
        raise TrainwrightError(f"submit: cannot make {folder}: {(error.strerror or str(error)).lower()}") from error
    return folder


def queue_states(directory: Path) -> dict[str, str]:
    """Return queued, running or ended for each job of a study; submitted where no command here tells of them."""
    files = sorted((directory / _FOLDER).glob(f"[0-9]*/{SUBMITTED}"), key=lambda file: int(file.parent.name))
    jobs = [job for file in files for job in file.read_text(encoding="utf-8").split()]
    known = _slurm_states() if jobs and shutil.which("squeue") else None
    return {job: "submitted" if known is None else known.get(job, "ended") for job in jobs}


def run_command(command: Sequence[str]) -> str:
    """Return what a command of the batch system prints. Raises `TrainwrightError` with its words if it fails."""
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            check=True,
            timeout=_PATIENCE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise TrainwrightError(f"submit: {command[0]} says nothing within {_PATIENCE_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        words = (error.stderr or error.stdout).strip().splitlines() or [f"exit status {error.returncode}"]
        raise TrainwrightError(f"submit: {command[0]} refuses: {words[-1].removeprefix(f'{command[0]}: ')}") from None
    return done.stdout.strip()


def _slurm_states() -> dict[str, str]:
    try:
        lines = run_command(["squeue", "--me", "--noheader", "--format=%i %T"]).splitlines()
    except TrainwrightError:
        # A controller that does not answer must not cost the rest of what is asked.
        return {}
    states = dict(line.split()[:2] for line in lines if line.strip())
    return {job: "queued" if state == "PENDING" else "running" for job, state in states.items()}


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
