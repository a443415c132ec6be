"""The Nodes engine: trials on the slots of a gang, several processes that a launcher has started, one on each node.

The first of a gang's consecutive tasks is its driver; every node has a member. The ranks of a trial find each other by
torch.distributed.
"""

import os
import secrets
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from trainwright.cluster.visible_devices import rank, task_count
from trainwright.engine.nodes.member import COMMAND, place_token, publish_meeting, serve
from trainwright.engine.nodes.member_engine import START_SECONDS, Member, MemberEngine
from trainwright.engine.process.listener import WorkerListener
from trainwright.engine.protocol import TrainFunction
from trainwright.errors import EngineError
from trainwright.signals import signals_held
from trainwright.validators import check, instance_of, integer, optional

__all__ = ["GangPlace", "Nodes", "own_hosts"]

_STEP = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PBS_JOBID",
)
"""What tells one start of a launcher from another."""
_LAST_WORDS_SECONDS = 10.0


@dataclass(eq=False)
class Nodes(MemberEngine):
    """Run trials on the slots of `nodes` members, who find this driver by the file `meeting`.

    Those that have not come within `start_seconds` are missed, and their slots are gone. A slot has a GPU where there
    are any; nodes may differ in size, and `speeds={"old-*": 0.5}` says which are slower, by patterns of HOST/cuda:N. A
    run longer than `timeout_seconds`, or a process with more resident memory than `memory_bytes`, is asked to end and
    killed `grace_seconds` later.
    """

    meeting: Annotated[Path, instance_of(Path, words="a path that all nodes see")]
    nodes: Annotated[int, integer(minimum=1), "members of the gang"]
    workers: Annotated[int | None, optional(integer(minimum=1)), "slots of a node; else one a GPU"] = None

    def check_together(self) -> None:
        """Begin without members: they are waited for when slots are asked for."""
        self._own: subprocess.Popen[bytes] | None = None
        self._clear()

    @property
    def slots(self) -> int:
        """The slots of all nodes, lost ones too. Waits for the members."""
        return sum(self.node_sizes)

    @property
    def slots_per_node(self) -> int:
        """The slots of the largest node."""
        return max(self.node_sizes)

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """The slots of each node."""
        if not self._ranges:
            self._gather_own_members()
        return tuple(map(len, self._ranges))

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`; wait for the members."""
        if self._listener is None:
            self._gather_own_members()
        super().open(train, directory)

    def close(self) -> None:
        """End all running trials, and release the members."""
        super().close()
        if self._own is not None:
            try:
                self._own.wait(_LAST_WORDS_SECONDS)
            except subprocess.TimeoutExpired:
                self._own.kill()
                self._own.wait()
            self._own = None
        with suppress(OSError):
            self.meeting.unlink()

    def _gather_own_members(self) -> None:
        """Say where to meet, start this node's own member, and wait for all."""
        self._listener = WorkerListener("")
        secret = secrets.token_hex(32)
        self._members = [Member(place, self._listener, place_token(secret, place)) for place in range(self.nodes)]
        publish_meeting(self.meeting, own_hosts(), self._listener.address[1], secret)
        words = [str(self.meeting), "0", str(self.workers or 0), str(self.start_seconds)]
        with signals_held():
            self._own = subprocess.Popen([*COMMAND, *words])
        self._gather_members()
        here = [member.arrived for member in self._members if member.arrived is not None]
        if not here:
            self.close()
            raise EngineError(f"gang: none of its {self.nodes} members has come within {self.start_seconds:g} s")
        # One that is missed counts as small as the smallest.
        least = min(arrived.slots for arrived in here)
        self._number_slots([least if each.arrived is None else each.arrived.slots for each in self._members])
        self._gpu = any(arrived.gpus for arrived in here)

    def _name_device(self, slot: int) -> str:
        member, number = self._locate_slot(slot)
        gpus = member.arrived.gpus if member.arrived is not None else ()
        return f"{member.name}/cuda:{gpus[number % len(gpus)]}" if gpus else f"{member.name}/cpu:{slot}"


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
            for name in ("timeout_seconds", "memory_bytes", "grace_seconds", "speeds")
            if hasattr(instead_of, name)
        }
        return Nodes(meeting=self.meeting, nodes=self.size, workers=workers, start_seconds=START_SECONDS, **limits)

    def serve(self, workers: int | None) -> bool:
        """Serve the driver on this node until it ends; return whether it said so."""
        return serve(self.meeting, self.place, slots=workers, start_seconds=START_SECONDS, home=str(Path.cwd()))


def own_hosts() -> list[str]:
    """Return the names and addresses by which other nodes may reach this one, the likeliest first."""
    name = socket.gethostname()
    found = [name]
    with suppress(OSError):
        found += [entry[4][0] for entry in socket.getaddrinfo(name, None, socket.AF_INET)]  # type: ignore[misc]
    # The address of the interface towards the network; nothing is sent for it.
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        found.append(probe.getsockname()[0])
    return list(dict.fromkeys([*found, "127.0.0.1"]))
