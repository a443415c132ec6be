"""Engines whose worker processes are started by members: a process on each node that guards them there.

The driver speaks with each member on one line, and with each worker process on a line of its own, so that no report
takes a detour. A member that is lost takes its slots along, and no more.
"""

import time
from abc import abstractmethod
from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from trainwright.cluster.device import NodeShape
from trainwright.engine.nodes.member import Arrived, Order
from trainwright.engine.process.listener import LineWorker, Worker, WorkerListener
from trainwright.engine.process.supervisor import Supervisor
from trainwright.engine.protocol import Block, Died, Outcome, Raised
from trainwright.schedule.allocator.mixed_nodes import node_slots
from trainwright.validators import number

__all__ = ["START_SECONDS", "Member", "MemberEngine"]

START_SECONDS = 120.0
_LAST_WORDS_SECONDS = 10.0
"""For which a member may take to say how a process ended whose line is broken."""


class Member(LineWorker):
    """The member of one node as the driver sees it; `place` is its number in the engine."""

    def __init__(self, place: int, listener: WorkerListener, token: bytes = b"", name: str = "") -> None:
        super().__init__(listener, token)
        self.place = place
        self.name = name or f"member {place}"
        self.arrived: Arrived | None = None
        self.lost = False
        self.ends: dict[int, Outcome] = {}
        """How processes have ended, by their serial numbers."""
        self.address = ""
        """Where the ranks of a trial can meet."""
        self._waiting: list[tuple[Any, ...]] = []
        listener.expect(self)

    def tell(self, *words: Any) -> None:
        """Send what the member is to do, as soon as it is there."""
        if self.arrived is None:
            self._waiting.append(words)
        else:
            self.send(words)

    def receive(self, timeout_seconds: float) -> None:
        """Take in what the member says, waiting for it for so long."""
        try:
            while self.connection.poll(timeout_seconds):
                message = self.connection.recv()
                if isinstance(message, Arrived):
                    self.arrived, self.name = message, message.host
                    for words in self._waiting:
                        self.send(words)
                elif isinstance(message, str):
                    self.address = message
                else:
                    serial, outcome = message
                    self.ends[serial] = outcome
                timeout_seconds = 0.0
        except (EOFError, OSError):
            self.lost = True

    def describe_loss(self) -> Died:
        """Return what the loss of the node means for a trial that ran there."""
        return Died(why=f"its node {self.name} is gone", blame=False)

    def close(self) -> None:
        """Let the member go: it ends its processes."""
        if self.connected:
            self.send(("bye",))
        self.close_connection()


class RemoteWorker(Worker):
    """A worker process on a member's node."""

    def __init__(self, part: range, serial: int, member: Member, listener: WorkerListener) -> None:
        super().__init__(part, listener)
        self.serial = serial
        self.member = member
        self._verdict: tuple[str, str] | None = None
        listener.expect(self)

    @property
    def ended(self) -> bool:
        """Whether the process is gone, as far as its member has said, or the member is."""
        return self.member.lost or self.serial in self.member.ends

    @property
    def terminating(self) -> bool:
        """Whether an end was decided for it."""
        return self._verdict is not None

    def terminate(self, failure: str, message: str, grace_seconds: float) -> None:
        """Have the process asked to end, and killed with its children after `grace_seconds`."""
        if self._verdict is None:
            self._verdict = failure, message
            self.member.tell("terminate", self.serial, failure, message, grace_seconds)

    def guard(self, memory_bytes: int | None, grace_seconds: float) -> None:
        """Leave it to the member."""

    def outcome(self) -> Outcome:
        """Return what the end of the process means for its trial."""
        self._listener.forget(self)
        end = time.monotonic() + _LAST_WORDS_SECONDS
        while not self.ended and time.monotonic() < end:
            self.member.receive(max(0.0, end - time.monotonic()))
        said = self.member.ends.get(self.serial) or self.member.describe_loss()
        # The driver had asked for this end: its reason counts.
        if self._verdict is not None and isinstance(said, Died):
            return Raised(failure=self._verdict[0], message=self._verdict[1], seconds=self.seconds)
        return replace(said, seconds=self.seconds)

    def find_address(self) -> str:
        """Return an address of its node; raises `OSError` if the member does not answer."""
        self.member.address = ""
        self.member.tell("address")
        end = time.monotonic() + _LAST_WORDS_SECONDS
        while not (self.member.address or self.member.lost):
            if time.monotonic() > end:
                self.member.lost = True
            self.member.receive(max(0.0, end - time.monotonic()))
        if self.member.lost:
            raise OSError
        return self.member.address

    def close(self, *, kill: bool) -> None:
        """End the process: at once, or by closing its line."""
        self.close_connection()
        if kill:
            self.member.tell("stop", self.serial)


@dataclass(eq=False, kw_only=True)
class MemberEngine(Supervisor):
    """An engine on the slots of its members; a subclass starts them, or lets them come."""

    start_seconds: Annotated[float, number(above=0), "seconds for members and processes to come"] = START_SECONDS
    _ranges: tuple[range, ...] = field(default=(), init=False, repr=False)
    """The slots of each member's node, once they are known."""

    def _clear(self) -> None:
        super()._clear()
        self._members: list[Member] = []
        self._serial = 0

    @property
    def gone(self) -> frozenset[int]:
        """The slots of nodes that are lost or never came."""
        return frozenset(slot for member in self._members if member.lost for slot in self._ranges[member.place])

    def _number_slots(self, sizes: Iterable[int]) -> None:
        """Give the slots their numbers, node by node."""
        self._ranges = node_slots(tuple(map(NodeShape, sizes)))

    def _locate_slot(self, slot: int) -> tuple[Member, int]:
        """Return the member of a slot, and the slot's number in its node."""
        place = bisect(self._ranges, slot, key=lambda part: part.start) - 1
        return self._members[place], slot - self._ranges[place].start

    def devices(self, block: Block) -> tuple[str, ...]:
        """Return the names of a block's devices, with the nodes that they are in."""
        return tuple(self._name_device(slot) for slot in block)

    @abstractmethod
    def _name_device(self, slot: int) -> str:
        """Return the name of a slot's device, with the node that it is in."""

    def _gather_members(self) -> None:
        """Wait for the members; those that have not come within `start_seconds` are lost."""
        end = time.monotonic() + self.start_seconds
        while any(member.arrived is None for member in self._members) and time.monotonic() < end:
            for guest in self._require_listener().wait(0.25):
                guest.receive(0.0)
        for member in self._members:
            member.lost |= member.arrived is None

    def _start_worker(self, part: range) -> Worker:
        self._serial += 1
        member, slot = self._locate_slot(part[0])
        if member.connected:
            # Its end may not have been heard yet; the engine may have started another then.
            self._handle_other(member)
            member = self._members[member.place]
        worker = RemoteWorker(part, self._serial, member, self._require_listener())
        order = Order(
            slot=slot,
            serial=self._serial,
            token=worker.token,
            memory_bytes=self.memory_bytes,
            grace_seconds=self.grace_seconds,
        )
        member.tell("start", order)
        return worker

    def _find_trouble(self, worker: Worker) -> str:
        assert isinstance(worker, RemoteWorker)  # noqa: S101 -- it starts no others
        if worker.member.lost:
            return worker.member.describe_loss().why
        if worker.ended:
            said = worker.member.ends[worker.serial]
            return said.why if isinstance(said, Died) else "its worker process ended before it began"
        if not worker.connected and worker.seconds > self.start_seconds:
            # A node that starts no process is of no use, though it may have come.
            worker.member.arrived = None
            self._lose_member(worker.member)
            return f"no worker process came from {worker.member.name} within start_seconds={self.start_seconds:g}"
        return ""

    def _handle_other(self, process: LineWorker) -> None:
        if not isinstance(process, Member):
            super()._handle_other(process)
            return
        process.receive(0.0)
        if process.lost:
            self._lose_member(process)

    def _lose_member(self, member: Member) -> None:
        """Take note that a node is gone, and with it its slots and what ran there."""
        member.lost = True
        self._require_listener().forget(member)
        for part, worker in list(self._idle.items()):
            if isinstance(worker, RemoteWorker) and worker.member is member:
                self._idle.pop(part).close(kill=False)

    def close(self) -> None:
        """End all running trials, and release the members."""
        members = self._members
        for member in members:
            member.close()
        super().close()
        # Whoever closes it may yet ask which nodes were lost.
        self._members = [member for member in members if member.lost]
