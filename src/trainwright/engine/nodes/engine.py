"""The Nodes engine: trials on the slots of a gang, several processes that a launcher has started, one on each node.

The first task of a gang is its driver; every node has a member. The ranks of a trial find each other by
torch.distributed.
"""

import secrets
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trainwright.engine.nodes.member import COMMAND, place_token, publish_meeting
from trainwright.engine.nodes.member_engine import Member, MemberEngine
from trainwright.engine.process.listener import WorkerListener
from trainwright.engine.process.supervisor import LIMIT
from trainwright.engine.protocol import TrainFunction
from trainwright.errors import EngineError
from trainwright.settings import Settings
from trainwright.signals import signals_held
from trainwright.validators import instance_of, integer, number, optional

__all__ = ["Nodes", "own_hosts"]

_LAST_WORDS_SECONDS = 10.0


@dataclass(eq=False)
class Nodes(MemberEngine, Settings, error=EngineError):
    """Run trials on the slots of `nodes` members, who find this driver by the file `meeting`.

    Those that have not come within `start_seconds` are missed, and their slots are gone. All nodes have as many slots
    as the one that has fewest, a GPU each where there are any. A run longer than `timeout_seconds`, or a process with
    more resident memory than `memory_bytes`, is asked to end and killed `grace_seconds` later.
    """

    meeting: Annotated[Path, instance_of(Path, words="a path that all nodes see")]
    nodes: Annotated[int, integer(minimum=1), "members of the gang"]
    workers: Annotated[int | None, optional(integer(minimum=1)), "slots of a node; else one a GPU"] = None
    timeout_seconds: Annotated[float | None, LIMIT, "seconds of a run at most"] = None
    memory_bytes: Annotated[int | None, LIMIT, "resident memory of a process at most"] = None
    grace_seconds: Annotated[float, number(minimum=0), "seconds to end by itself"] = 5.0
    start_seconds: Annotated[float, number(above=0), "seconds for members and processes to come"] = 120.0

    def check_together(self) -> None:
        """Begin without members: they are waited for when slots are asked for."""
        self._own: subprocess.Popen[bytes] | None = None
        self._clear()

    @property
    def slots(self) -> int:
        """The slots of all nodes, lost ones too. Waits for the members."""
        return self.slots_per_node * self.nodes

    @property
    def slots_per_node(self) -> int:
        """The slots of one node."""
        if not self._per_node:
            self._meet_members()
        return self._per_node

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`; wait for the members."""
        if self._listener is None:
            self._meet_members()
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

    def _meet_members(self) -> None:
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
        self._per_node = min(arrived.slots for arrived in here)
        self._gpu = any(arrived.gpus for arrived in here)

    def _name_device(self, slot: int) -> str:
        member, number = self._members[slot // self._per_node], slot % self._per_node
        gpus = member.arrived.gpus if member.arrived is not None else ()
        return f"{member.name}/cuda:{gpus[number % len(gpus)]}" if gpus else f"{member.name}/cpu:{slot}"


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
