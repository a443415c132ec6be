"""Batch systems as data: how their scripts ask for nodes, start tasks, submit a successor and cancel it.

A new system is one more entry of `SYSTEMS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.cli.submit import Job

__all__ = ["SYSTEMS", "BatchSystem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSystem:
    """One batch system: parts of a shell script. `{script}`, `{nodes}`, `{tasks}`, `{tasks_per_node}` are filled in."""

    requests: "Callable[[Job, str], list[str]]"
    """The lines by which a job asks for what it needs, with its output below a folder."""
    job: str
    """What gives a job's number within it."""
    submit: str
    """The command that submits a script."""
    successor: str
    """The command that submits it to run when this job has ended, however, and prints the number of the new one."""
    cancel: str
    """The command that cancels the job whose number follows."""
    launch: str
    """What starts the command that follows once a task."""
    restarts: str = "0"
    """How often this job was put back into the queue: its successor is there already."""


def _lines(mark: str, options: Mapping[str, object]) -> list[str]:
    """Return a line for each option that has a value; True stands for one that takes none."""
    given = {name: value for name, value in options.items() if value is not None and value != ""}
    return [f"{mark} {name}" + ("" if value is True else str(value)) for name, value in given.items()]


def _slurm(job: "Job", folder: str) -> list[str]:
    options = {
        "--job-name=": job.name,
        "--nodes=": job.nodes,
        "--ntasks-per-node=": job.tasks_per_node,
        "--cpus-per-task=": job.cores_per_task,
        "--gpus-per-node=": job.gpus_per_node,
        "--time=": job.minutes,
        "--account=": job.account,
        "--partition=": job.partition,
        # A job that is preempted keeps its number and begins again; one that loses a node keeps the others.
        "--requeue": True,
        "--no-kill": True,
        "--open-mode=append --output=": f"{folder}/%j.log",
    }
    return _lines("#SBATCH", options)


def _pbs(job: "Job", folder: str) -> list[str]:
    chunk = {
        ":ncpus=": job.cores_per_task and job.cores_per_task * job.tasks_per_node,
        ":ngpus=": job.gpus_per_node,
        ":mpiprocs=": job.tasks_per_node,
    }
    each = "".join(f"{name}{value}" for name, value in chunk.items() if value is not None)
    options = {
        "-N ": job.name,
        "-l select=": f"{job.nodes}{each}",
        "-l walltime=": f"{job.minutes // 60:02d}:{job.minutes % 60:02d}:00",
        "-A ": job.account,
        "-q ": job.partition,
        "-r y -j oe -o ": f"{folder}/",
    }
    return _lines("#PBS", options)


def _lsf(job: "Job", folder: str) -> list[str]:
    cores = f" affinity[core({job.cores_per_task})]" if job.cores_per_task else ""
    options = {
        "-J ": job.name,
        "-n ": job.nodes * job.tasks_per_node,
        "-R ": f'"span[ptile={job.tasks_per_node}]{cores}"',
        "-gpu ": job.gpus_per_node and f'"num={job.gpus_per_node}"',
        "-W ": f"{job.minutes // 60:02d}:{job.minutes % 60:02d}",
        "-P ": job.account,
        "-q ": job.partition,
        "-r -o ": f"{folder}/%J.log",
    }
    return _lines("#BSUB", options)


def _flux(job: "Job", folder: str) -> list[str]:
    options = {
        "--job-name=": job.name,
        "--nodes=": job.nodes,
        "--exclusive": True,
        "--time-limit=": f"{job.minutes}m",
        "--bank=": job.account,
        "--queue=": job.partition,
        "--output=": f"{folder}/{{{{id}}}}.log",
    }
    return _lines("#flux:", options)


_MPIRUN = "mpirun -n {tasks} --map-by ppr:{tasks_per_node}:node --bind-to none"

SYSTEMS: Mapping[str, BatchSystem] = {
    "slurm": BatchSystem(
        requests=_slurm,
        job="$SLURM_JOB_ID",
        submit="sbatch --parsable {script}",
        successor='sbatch --parsable --dependency="afterany:$SLURM_JOB_ID" {script}',
        cancel="scancel",
        # From 22.05 on a step does not take the job's processors by itself.
        launch="srun --no-kill --kill-on-bad-exit=0 ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}}",
        restarts="${SLURM_RESTART_COUNT:-0}",
    ),
    "pbs": BatchSystem(
        requests=_pbs,
        job="$PBS_JOBID",
        submit="qsub {script}",
        successor='qsub -V -W "depend=afterany:$PBS_JOBID" {script}',
        cancel="qdel",
        launch=_MPIRUN,
    ),
    "lsf": BatchSystem(
        requests=_lsf,
        job="$LSB_JOBID",
        submit="bsub < {script}",
        # It answers "Job <17> is submitted ...".
        successor='bsub -w "ended($LSB_JOBID)" < {script} | tr -cd "0-9 " | tr -s " " | cut -d " " -f 2',
        cancel="bkill",
        launch=_MPIRUN,
    ),
    "flux": BatchSystem(
        requests=_flux,
        job="$(flux getattr jobid)",
        submit="flux batch {script}",
        successor='flux --parent batch --dependency="afterany:$(flux getattr jobid)" {script}',
        cancel="flux --parent cancel",
        launch="flux run --exclusive --nodes={nodes} --ntasks={tasks}",
    ),
}
