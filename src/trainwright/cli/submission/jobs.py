"""The jobs that were submitted for a study: what is known of them below its directory, and what the queue says.

A call of `trainwright submit` has a folder `jobs/NUMBER` of its own: its script, and `submitted`, to which it and its
jobs append the number of each job, one a line.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trainwright.errors import TrainwrightError

__all__ = ["SUBMITTED", "make_folder", "queue_states", "run_command"]

SUBMITTED = "submitted"
_FOLDER = "jobs"
_PATIENCE_SECONDS = 60.0


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
