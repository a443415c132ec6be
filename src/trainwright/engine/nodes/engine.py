"""The Nodes engine: trials on the slots of a gang, several processes that a launcher has started, one on each node.

The first task of a gang is its driver; every node has a `member`, which starts and guards worker processes there. The
ranks of a trial find each other by torch.distributed. A node that is lost takes its slots with it, and no more.
"""

import secrets
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from trainwright.engine.function_reference import FunctionReference
from trainwright.engine.nodes.member import COMMAND, Arrived, Order, place_token, publish_meeting
from trainwright.engine.process.gang import Gang
from trainwright.engine.process.listener import LineWorker, WorkerListener
from trainwright.engine.process.worker_process import log_path
from trainwright.engine.protocol import Block, Died, Handler, Outcome, Raised, TrainFunction
from trainwright.errors import EngineError
from trainwright.settings import Settings
from trainwright.signals import signals_held
from trainwright.train.assignment import Assignment
from trainwright.validators import instance_of, integer, number, optional

__all__ = ["Nodes"]

_LIMIT = optional(number(above=0), words="None for no limit")
_LOOK_SECONDS = 0.25
_LAST_WORDS_SECONDS = 10.0
"""For which a member may take to say how a process ended whose line is broken."""


class Member(LineWorker):
    """The member of one node as the driver sees it; `slot` is its place in the gang."""

    def __init__(self, place: int, secret: str, listener: WorkerListener) -> None:
        super().__init__(place, listener, place_token(secret, place))
        self.arrived: Arrived | None = None
        self.lost = False
        self.addresses: dict[int, str] = {}
        """Where the ranks of a trial can meet, by its number."""
        self.ends: dict[int, Outcome] = {}
        """How processes have ended, by their serial numbers."""

    def tell(self, *words: Any) -> None:
        """Send what the member is to do; nothing to one that is gone."""
        with suppress(OSError, EOFError):
            self.connection.send(words)

    def hear(self, timeout_seconds: float) -> None:
        """Take in what the member says, waiting for it for so long."""
        try:
            while self.connection.poll(timeout_seconds):
                message = self.connection.recv()
                if isinstance(message, Arrived):
                    self.arrived = message
                else:
                    what, number, content = message
                    (self.addresses if what == "address" else self.ends)[number] = content
                timeout_seconds = 0.0
        except (EOFError, OSError):
            self.lost = True

    def close(self) -> None:
        """Let the member go: it ends its processes."""
        self._listener.forget(self)
        if self._line is not None:
            with suppress(OSError):
                self._line.send("bye")
            self._line.close()


class NodeWorker(LineWorker):
    """A worker process on a member's node: what `Gang` needs of one."""

    def __init__(self, slot: int, serial: int, member: Member, listener: WorkerListener) -> None:
        super().__init__(slot, listener)
        self.serial = serial
        self.member = member

    @property
    def ended(self) -> bool:
        """Whether the process is gone, as far as its member has said, or the member is."""
        return self.member.lost or self.serial in self.member.ends

    def terminate(self, failure: str, message: str, grace_seconds: float) -> None:
        """Have the process asked to end, and killed with its children after `grace_seconds`."""
        if self._verdict is None:
            self._verdict = failure, message
            self.member.tell("terminate", self.serial, failure, message, grace_seconds)

    def enforce(self) -> None:
        """Leave it to the member, which kills the process when its grace is over."""

    def outcome(self) -> Outcome:
        """Return what the end of the process means for its trial."""
        self._listener.forget(self)
        end = time.monotonic() + _LAST_WORDS_SECONDS
        while not self.ended and time.monotonic() < end:
            self.member.hear(max(0.0, end - time.monotonic()))
        said = self.member.ends.get(self.serial)
        if said is None:
            said = Died(why=f"its node {_name(self.member)} is gone", blame=False)
        # The driver had asked for this end: its reason counts.
        if self._verdict is not None and isinstance(said, Died):
            return Raised(failure=self._verdict[0], message=self._verdict[1], seconds=self.seconds)
        return replace(said, seconds=self.seconds)

    def close(self, *, kill: bool) -> None:
        """End the process: at once, or by closing its line."""
        self._listener.forget(self)
        if self._line is not None:
            self._line.close()
        if kill and not self._closed:
            self.member.tell("stop", self.serial)
        self._closed = True


@dataclass(kw_only=True, slots=True)
class Start:
    """A trial whose processes are on their way."""

    assignment: Assignment
    workers: dict[range, NodeWorker]
    since: float
    asked: bool = False
    """Whether an address was asked for at which its ranks can meet."""


@dataclass(eq=False)
class Nodes(Settings, error=EngineError):
    """Run trials on the slots of `nodes` members, who find this driver by the file `meeting`.

    Those that have not come within `start_seconds` are missed, and their slots are gone. All nodes have as many slots
    as the one that has fewest, a GPU each where there are any. A run longer than `timeout_seconds`, or a rank with more
    resident memory than `memory_bytes`, is asked to end and killed `grace_seconds` later.
    """

    meeting: Annotated[Path, instance_of(Path, words="a path that all nodes see")]
    nodes: Annotated[int, integer(minimum=1), "members of the gang"]
    workers: Annotated[int | None, optional(integer(minimum=1)), "slots of a node; else one a GPU"] = None
    timeout_seconds: Annotated[float | None, _LIMIT, "seconds of a run at most"] = None
    memory_bytes: Annotated[int | None, _LIMIT, "resident memory of a rank at most"] = None
    grace_seconds: Annotated[float, number(minimum=0), "seconds to end by itself"] = 5.0
    start_seconds: Annotated[float, number(above=0), "seconds for members and processes to come"] = 120.0

    def check_together(self) -> None:
        """Begin without members: they are waited for when slots are asked for."""
        self._members: list[Member] = []
        self._listener: WorkerListener | None = None
        self._own: subprocess.Popen[bytes] | None = None
        self._per_node = 0
        self._gone: frozenset[int] = frozenset()
        self._reference: FunctionReference | None = None
        self._directory: Path | None = None
        self._serial = 0
        self._idle: dict[int, NodeWorker] = {}
        self._starting: dict[int, Start] = {}
        self._gangs: dict[int, Gang[NodeWorker]] = {}
        self._seats: dict[NodeWorker, tuple[int, int]] = {}
        """Trial and rank of the workers in use."""
        self._looked = 0.0

    @property
    def slots(self) -> int:
        """The slots of all nodes, lost ones too. Waits for the members."""
        self._gather()
        return self._per_node * self.nodes

    @property
    def slots_per_node(self) -> int:
        """The slots of one node."""
        self._gather()
        return self._per_node

    @property
    def gone(self) -> frozenset[int]:
        """The slots of nodes that are lost or never came."""
        return self._gone

    def devices(self, block: Block) -> tuple[str, ...]:
        """Return the names of a block's devices, with the nodes that they are in."""
        return tuple(self._device(slot) for slot in block)

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`; wait for the members."""
        self._gather()
        self._reference = FunctionReference.of(train)
        self._directory = None if directory is None else directory.resolve()

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Hand the assignment to the workers of these slots, starting those that are not there."""
        workers = {range(slot, slot + 1): self._take_worker(slot) for slot in block}
        self._seats.update({worker: (assignment.trial, rank) for rank, worker in enumerate(workers.values())})
        self._starting[assignment.trial] = Start(assignment=assignment, workers=workers, since=time.monotonic())
        self._begin(assignment.trial)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Serve the workers that have something to say, and look for those that have gone."""
        deadline = time.monotonic() + timeout_seconds
        if handler.leaves():
            for gang in self._gangs.values():
                gang.leave()
        while self._gangs or self._starting:
            left = deadline - time.monotonic()
            told = False
            for guest in self._required().wait(max(0.0, min(left, _LOOK_SECONDS))):
                told |= self._serve(guest, handler)
            if time.monotonic() - self._looked >= _LOOK_SECONDS:
                told |= self._look(handler)
            for trial in list(self._starting):
                told |= self._watch_start(trial, handler)
            if told or left <= 0:
                return

    def close(self) -> None:
        """End whatever runs, and let the members go."""
        for gang in self._gangs.values():
            gang.kill()
        for start in self._starting.values():
            for worker in start.workers.values():
                worker.close(kill=True)
        for worker in self._idle.values():
            worker.close(kill=True)
        for member in self._members:
            member.close()
        if self._own is not None:
            try:
                self._own.wait(_LAST_WORDS_SECONDS)
            except subprocess.TimeoutExpired:
                self._own.kill()
                self._own.wait()
        if self._listener is not None:
            self._listener.close()
        with suppress(OSError):
            self.meeting.unlink()
        # Whoever closes it may yet ask which nodes were lost.
        gone = self._gone
        self.check_together()
        self._gone = gone

    # The members.

    def _gather(self) -> None:
        """Wait for the members, once."""
        if self._listener is not None:
            return
        listener = self._listener = WorkerListener("")
        secret = secrets.token_hex(32)
        self._members = [Member(place, secret, listener) for place in range(self.nodes)]
        for member in self._members:
            listener.expect(member)
        publish_meeting(self.meeting, _own_hosts(), listener.address[1], secret)
        words = [str(self.meeting), "0", str(self.workers or 0), str(self.start_seconds)]
        with signals_held():
            self._own = subprocess.Popen([*COMMAND, *words])
        end = time.monotonic() + self.start_seconds
        while any(member.arrived is None for member in self._members) and time.monotonic() < end:
            for guest in listener.wait(_LOOK_SECONDS):
                if isinstance(guest, Member):
                    guest.hear(0.0)
        here = [member.arrived for member in self._members if member.arrived is not None]
        if not here:
            self.close()
            raise EngineError(f"gang: none of its {self.nodes} members has come within {self.start_seconds:g} s")
        self._per_node = min(arrived.slots for arrived in here)
        self._note_gone()

    def _note_gone(self) -> None:
        missing = [member.slot for member in self._members if member.arrived is None or member.lost]
        self._gone = frozenset(place * self._per_node + number for place in missing for number in range(self._per_node))

    def _member_of(self, slot: int) -> Member:
        return self._members[slot // self._per_node]

    def _device(self, slot: int) -> str:
        member, number = self._member_of(slot), slot % self._per_node
        arrived = member.arrived
        if arrived is None or not arrived.gpus:
            return f"{_name(member)}/cpu:{slot}"
        return f"{arrived.host}/cuda:{arrived.gpus[number % len(arrived.gpus)]}"

    # Workers and their trials.

    def _take_worker(self, slot: int) -> NodeWorker:
        """Return the slot's idle worker process, or start one."""
        worker = self._idle.pop(slot, None)
        if worker is not None and not worker.ended and not worker.connection.poll():
            return worker
        if worker is not None:
            worker.close(kill=True)
        self._serial += 1
        member = self._member_of(slot)
        worker = NodeWorker(slot, self._serial, member, self._required())
        self._required().expect(worker)
        order = Order(
            slot=slot % self._per_node,
            serial=self._serial,
            token=worker.token,
            memory_bytes=self.memory_bytes,
            grace_seconds=self.grace_seconds,
        )
        member.tell("start", order)
        return worker

    def _begin(self, trial: int) -> None:
        """Let a trial begin if the processes of all its ranks are there, and know where to meet."""
        start = self._starting[trial]
        ranks = list(start.workers.values())
        if not all(worker.connected for worker in ranks):
            return
        assignment = start.assignment
        if len(ranks) > 1:
            if not start.asked:
                start.asked = True
                ranks[0].member.tell("address", trial)
            address = ranks[0].member.addresses.pop(trial, None)
            if address is None:
                return
            assignment = replace(assignment, address=address)
        del self._starting[trial]
        self._gangs[trial] = Gang(assignment, start.workers, self._make_message)

    def _make_message(self, assignment: Assignment) -> tuple[Any, ...]:
        gpu = any(member.arrived is not None and member.arrived.gpus for member in self._members)
        return sys.path, sys.argv, self._reference, assignment, log_path(self._directory, assignment), gpu

    def _serve(self, guest: Member | NodeWorker, handler: Handler) -> bool:
        """Deal with what a member or a worker has to say; return whether the handler was told something."""
        if isinstance(guest, Member):
            guest.hear(0.0)
            if guest.lost:
                self._lose(guest)
            return False
        trial, rank = self._seats.get(guest, (None, 0))
        if trial is None or trial not in self._gangs:
            # An idle process has nothing to say: its connection was closed, as the next trial will find.
            self._required().forget(guest)
            return False
        self._gangs[trial].serve(rank, handler)
        self._settle(trial, handler)
        return True

    def _settle(self, trial: int, handler: Handler) -> bool:
        """Tell of the trial's end, if it has come, and keep its workers for the next."""
        gang = self._gangs[trial]
        if gang.outcome is None:
            return False
        del self._gangs[trial]
        self._free(gang.workers.values(), reuse=gang.reusable)
        handler.exited(trial, gang.outcome)
        return True

    def _free(self, workers: Any, *, reuse: bool) -> None:
        for worker in workers:
            del self._seats[worker]
            if reuse and worker.connected and not worker.ended and not worker.member.lost:
                self._idle[worker.slot] = worker
            else:
                worker.close(kill=True)

    def _look(self, handler: Handler) -> bool:
        """Look for processes that have ended and times that are over."""
        self._looked = time.monotonic()
        told = False
        for trial in list(self._gangs):
            self._gangs[trial].watch(
                handler, timeout_seconds=self.timeout_seconds, memory_bytes=None, grace=self.grace_seconds
            )
            told |= self._settle(trial, handler)
        return told

    def _watch_start(self, trial: int, handler: Handler) -> bool:
        """Begin a trial once its processes are there; end one whose processes do not come. No trial is to blame."""
        start = self._starting[trial]
        why = ""
        for worker in start.workers.values():
            if worker.member.lost:
                why = f"its node {_name(worker.member)} is gone"
            elif worker.ended:
                said = worker.member.ends.get(worker.serial)
                why = said.why if isinstance(said, Died) else "its worker process ended before it began"
        if not why and time.monotonic() - start.since > self.start_seconds:
            why = f"its worker processes did not start within start_seconds={self.start_seconds:g}"
        if not why:
            self._begin(trial)
            return False
        del self._starting[trial]
        self._free(start.workers.values(), reuse=True)
        handler.exited(trial, Died(why=why, blame=False))
        return True

    def _lose(self, member: Member) -> None:
        """Take note that a node is gone, and with it its slots and what ran there."""
        self._note_gone()
        self._required().forget(member)
        for slot in [slot for slot, worker in self._idle.items() if worker.member is member]:
            self._idle.pop(slot).close(kill=False)

    def _required(self) -> WorkerListener:
        if self._listener is None:
            raise EngineError("gang: it is not open; open it before launching or polling")
        return self._listener


def _name(member: Member) -> str:
    return f"member {member.slot}" if member.arrived is None else member.arrived.host


def _own_hosts() -> list[str]:
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
