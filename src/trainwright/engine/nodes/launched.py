"""A launcher's task in a gang: the first of N consecutive tasks drives the others."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trainwright.engine.devices import rank, task_count
from trainwright.engine.nodes.engine import Nodes
from trainwright.engine.nodes.member import serve
from trainwright.errors import EngineError
from trainwright.validators import check, integer

__all__ = ["GangPlace"]

_STEP = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PBS_JOBID",
)
"""What tells one start of a launcher from another."""
_START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class GangPlace:
    """The place of this task among the `size` tasks of its gang, which meet by a file."""

    place: int
    size: int
    meeting: Path

    @classmethod
    def of(cls, size: int, directory: Path | None, environment: Mapping[str, str] = os.environ) -> Self:
        """Return this task's place, by its number among those of the launcher.

        Raises `EngineError` where no launcher has numbered it, or has started too few.
        """
        check(size, integer(minimum=1), "worker: --gang", EngineError)
        number, tasks = rank(environment), task_count(environment)
        if number is None or tasks is None:
            raise EngineError(
                f"worker: --gang {size} goes with a launcher that numbers its tasks, one on each node; start it with "
                "srun or mpirun"
            )
        if tasks % size:
            raise EngineError(
                f"worker: --gang {size} does not divide the {tasks} tasks of the launcher; start a multiple of {size}, "
                "one on each node"
            )
        if directory is None:
            raise EngineError("worker: --gang needs a study in a directory that all nodes see")
        step = "-".join(environment[name].replace("/", "_") for name in _STEP if environment.get(name))
        return cls(number % size, size, directory.resolve() / "gangs" / f"{step or 'tasks'}-{number // size}.json")

    @property
    def drives(self) -> bool:
        """Whether this is the gang's driver."""
        return self.place == 0

    def engine(self, workers: int | None, instead_of: Any) -> Nodes:
        """Return the engine of the driver, with the limits of the one that it takes the place of."""
        limits = {
            name: getattr(instead_of, name)
            for name in ("timeout_seconds", "memory_bytes", "grace_seconds")
            if hasattr(instead_of, name)
        }
        return Nodes(meeting=self.meeting, nodes=self.size, workers=workers, start_seconds=_START_SECONDS, **limits)

    def serve(self, workers: int | None) -> bool:
        """Serve the driver on this node until it ends; return whether it said so."""
        return serve(self.meeting, self.place, slots=workers, start_seconds=_START_SECONDS, home=str(Path.cwd()))
