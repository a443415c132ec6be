"""The end of an allocation: when the launcher says that it ends, and hooks such as a requeue by Slurm."""

import os
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from trainwright.checkpoint.policy.signals import FORCED_EXIT
from trainwright.errors import CheckpointConfigError
from trainwright.settings import Settings
from trainwright.validators import anything, each, integer, number

__all__ = ["CommandHook", "Hook", "SlurmRequeue", "end_of_allocation"]


class Hook(Protocol):
    """Called once, on the first rank, when the last checkpoint is committed; its answer is the exit status."""

    def __call__(self) -> int:
        """Do it, and return the exit status: 0 if training will go on elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmRequeue(Settings, error=CheckpointConfigError):
    """Puts the job back into Slurm's queue: `scontrol requeue $SLURM_JOB_ID`.

    The batch script asks for a warning and passes it on to its steps:

        #SBATCH --requeue --signal=B:USR1@120
        trap 'kill -USR1 "$(jobs -p)"' USR1
        srun python train.py & wait; wait

    A job that was requeued `max_restarts` times is not requeued again: it warns, and the status is 75, as for a
    requeue that Slurm refuses.
    """

    max_restarts: Annotated[int, integer(minimum=0), "requeues of one job at most"] = 100
    timeout_seconds: Annotated[float, number(above=0), "how long `scontrol` may take"] = 30.0

    def __call__(self) -> int:
        """Requeue the job that this process belongs to."""
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            return _warn_refused("this is no Slurm job (SLURM_JOB_ID is not set)")
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if restarts >= self.max_restarts:
            return _warn_refused(f"job {job} was requeued {restarts} times, max_restarts is {self.max_restarts}")
        status, said = _run_command(["scontrol", "requeue", job], self.timeout_seconds)
        return 0 if status == 0 else _warn_refused(f"`scontrol requeue {job}` says: {said}")


@dataclass(frozen=True, slots=True)
class CommandHook(Settings, error=CheckpointConfigError):
    """Runs a command, given as a list of words; its exit status is the process's."""

    command: Annotated[
        Sequence[str], each(anything(), least=1, words="a list of words, such as ['sbatch', 'job.sh']"), "the command"
    ]
    timeout_seconds: Annotated[float, number(above=0), "how long it may take"] = 30.0

    def __call__(self) -> int:
        """Run it to its end."""
        status, said = _run_command(self.command, self.timeout_seconds)
        if status != 0:
            warnings.warn(f"the command after the last checkpoint failed with {status}: {said}", stacklevel=2)
        return status


def end_of_allocation(environment: Mapping[str, str], *, ask: bool = False) -> float | None:
    """Return when the allocation ends, in seconds since 1970, as its launcher says; None if it does not.

    Slurm sets SLURM_JOB_END_TIME when a job starts; with `ask` its controller is asked, for a limit may be changed.
    """
    job = environment.get("SLURM_JOB_ID")
    if ask and job is not None:
        status, said = _run_command(["squeue", "--noheader", "--jobs", job, "--format", "%e"], 10.0, environment)
        if status == 0 and (end := _parse_timestamp(said)) is not None:
            return end
    try:
        return float(environment["SLURM_JOB_END_TIME"])
    except (KeyError, ValueError):
        return None


def _parse_timestamp(text: str) -> float | None:
    from datetime import datetime

    try:
        # Slurm's is local time, as this one.
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        # "N/A", for a job without a limit.
        return None


def _run_command(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Return the exit status and what the command said; 75 if it cannot be run or takes too long."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, check=False, timeout=timeout, env=environment
        )  # fmt: skip
    except OSError as error:
        return FORCED_EXIT, (error.strerror or str(error)).lower()
    except subprocess.TimeoutExpired:
        return FORCED_EXIT, f"nothing within {timeout:g} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def _warn_refused(why: str) -> int:
    warnings.warn(f"the job is not requeued: {why}; submit it again to go on", stacklevel=3)
    return FORCED_EXIT
