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
from trainwright.validators import integer, number

__all__ = ["Hook", "SlurmRequeue", "end_of_allocation"]


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


def end_of_allocation(environment: Mapping[str, str]) -> float | None:
    """Return when the allocation ends, in seconds since 1970, as Slurm sets it at a job's start; None if unknown."""
    try:
        return float(environment["SLURM_JOB_END_TIME"])
    except (KeyError, ValueError):
        return None


def _run_command(command: Sequence[str], timeout: float) -> tuple[int, str]:
    """Return the exit status and what the command said; 75 if it cannot be run or takes too long."""
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, check=False, timeout=timeout)
    except OSError as error:
        return FORCED_EXIT, (error.strerror or str(error)).lower()
    except subprocess.TimeoutExpired:
        return FORCED_EXIT, f"nothing within {timeout:g} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def _warn_refused(why: str) -> int:
    warnings.warn(f"the job is not requeued: {why}; submit it again to go on", stacklevel=3)
    return FORCED_EXIT
