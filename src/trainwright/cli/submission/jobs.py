"""The jobs that were submitted for a study: what is known of them below its directory, and what the queue says.

A call of `trainwright submit` has a folder `jobs/NUMBER` of its own: its script, the name of its batch system, and
`submitted`, to which it and its jobs append the number of each job, one a line.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwright.errors import TrainwrightError
from trainwright.publishing import write_file

__all__ = ["Submission", "make_submission", "queue_states", "run_command", "submissions"]

_FOLDER, _SUBMITTED, _SYSTEM = "jobs", "submitted", "system"
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of `trainwright submit`, in its folder."""

    folder: Path

    @property
    def system(self) -> str:
        """The name of its batch system."""
        return (self.folder / _SYSTEM).read_text(encoding="utf-8").strip()

    @property
    def jobs(self) -> list[str]:
        """The numbers of its jobs, in the order in which they were submitted."""
        path = self.folder / _SUBMITTED
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def add(self, job: str) -> None:
        """Take note of a job."""
        with (self.folder / _SUBMITTED).open("a", encoding="utf-8") as file:
            file.write(f"{job}\n")


def make_submission(directory: Path, system: str) -> Submission:
    """Return a new one for the study in `directory`."""
    for number in range(1, 10**6):
        folder = directory.resolve() / _FOLDER / str(number)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        write_file(folder / _SYSTEM, f"{system}\n")
        (folder / _SUBMITTED).touch()
        return Submission(folder)
    raise TrainwrightError(f"submit: {directory / _FOLDER} is full")


def submissions(directory: Path) -> list[Submission]:
    """Return all of a study, the oldest first."""
    folders = [path.parent for path in (directory / _FOLDER).glob(f"[0-9]*/{_SYSTEM}")]
    return [Submission(folder) for folder in sorted(folders, key=lambda folder: int(folder.name))]


def queue_states(directory: Path) -> dict[str, str]:
    """Return queued, running or ended for each job of a study; submitted for those that no command here tells of."""
    found: dict[str, str] = {}
    for submission in submissions(directory):
        known = _slurm_states() if submission.system == "slurm" and shutil.which("squeue") else None
        for job in submission.jobs:
            found[job] = "submitted" if known is None else known.get(job, "ended")
    return found


def run_command(command: Sequence[str]) -> str:
    """Return what a command of the batch system prints. Raises `TrainwrightError` with its words if it fails."""
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise TrainwrightError(f"submit: cannot run {command[0]}: {(error.strerror or str(error)).lower()}") from error
    except subprocess.TimeoutExpired:
        raise TrainwrightError(f"submit: {command[0]} says nothing within {_PATIENCE_SECONDS:g} s") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise TrainwrightError(f"submit: {command[0]} refuses: {words[-1].removeprefix(f'{command[0]}: ')}")
    return done.stdout.strip()


def _slurm_states() -> dict[str, str]:
    try:
        lines = run_command(["squeue", "--me", "--noheader", "--format=%i %T"]).splitlines()
    except TrainwrightError:
        # A controller that does not answer must not cost the rest of what is asked.
        return {}
    states = dict(line.split()[:2] for line in lines if line.strip())
    return {job: "queued" if state == "PENDING" else "running" for job, state in states.items()}
