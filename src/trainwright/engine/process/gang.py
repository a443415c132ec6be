"""Run one trial on several worker processes, one per rank, that begin together and end together."""

import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Generic, Protocol, TypeVar

from trainwright.engine.protocol import Died, Handler, Outcome, Raised
from trainwright.errors import EngineError
from trainwright.train.assignment import Assignment

_CAUSE_SECONDS = 1.0
"""After the failure of a rank, for which another may turn out to have been its cause."""

_FIRST_PORT, _PORTS = 12000, 20000
"""Below those of outgoing connections, which begin at 32768 on Linux."""
_TRIES = 100

LEAVE = ("leave",)
"""What a worker is sent whose trial is to save at its next step and to end."""

__all__ = ["LEAVE", "Gang", "Process", "free_address"]


class Process(Protocol):
    """A worker process, here or elsewhere."""

    @property
    def connection(self) -> "Connection[Any, Any]":
        """Its line."""

    @property
    def ended(self) -> bool:
        """Whether it is gone."""

    @property
    def seconds(self) -> float:
        """Seconds since its assignment was sent."""

    @property
    def terminating(self) -> bool:
        """Whether an end was decided for it."""

    def run(self, message: tuple[Any, ...]) -> None:
        """Send an assignment."""

    def terminate(self, failure: str, message: str, grace_seconds: float) -> None:
        """Ask it to end, and have it killed after `grace_seconds`."""

    def enforce(self) -> None:
        """Kill it if it was told to terminate and its grace is over."""

    def outcome(self) -> Outcome:
        """Return what its end means for its trial."""

    def resident_bytes(self) -> int:
        """Return the memory of it and its descendants."""

    def close(self, *, kill: bool) -> None:
        """End it: at once, or by closing its line."""


_Worker = TypeVar("_Worker", bound=Process)


class Gang(Generic[_Worker]):
    """One assignment on the workers of its ranks. Rank 0 speaks with the handler; if one fails the others are killed.

    `message(assignment)` is what a worker is sent to run it. Its address is one of this machine, unless it has one.
    """

    def __init__(
        self,
        assignment: Assignment,
        workers: Mapping[range, _Worker],
        message: Callable[[Assignment], tuple[Any, ...]],
    ) -> None:
        self.workers = workers
        """The workers of the ranks, by their slots."""
        self.outcome: Outcome | None = None
        """How the trial ended, once all its processes have."""
        self._trial = assignment.trial
        self._ranks = list(workers.values())
        self._living = dict(enumerate(self._ranks))
        self._silent: list[tuple[int, Outcome]] = []  # ranks whose process went away
        self._failed: list[tuple[int, Outcome]] = []  # ranks that could still say why
        self._failed_at = 0.0  # when the first of them did
        self._first: Outcome | None = None  # of rank 0
        self._told_to_leave = False
        # Rank 0 listens on this machine unless the engine found an address on another.
        address = assignment.address or (free_address() if len(workers) > 1 else "")
        for rank, worker in self._living.items():
            worker.run(message(replace(assignment, rank=rank, world_size=len(workers), address=address)))

    @property
    def connections(self) -> dict["Connection[Any, Any]", int]:
        """The lines to the ranks that still run."""
        return {worker.connection: rank for rank, worker in self._living.items()}

    @property
    def reusable(self) -> bool:
        """Whether its processes may run other trials. Of a group that broke none may: its threads live on in them."""
        troubled = self._silent or (self._failed and len(self._ranks) > 1)
        return not troubled and not any(worker.terminating for worker in self._ranks)

    def serve(self, rank: int, handler: Handler) -> None:
        """Deal with what a rank has to say."""
        worker = self._living.get(rank)
        if worker is None:
            # It was killed after it had spoken.
            return
        try:
            kind, content = worker.connection.recv()
            if kind == "facts":
                worker.connection.send(handler.facts(self._trial, content))
                return
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._note_death(rank)
        else:
            self._note_end(rank, content)
        self._settle_end(handler)

    def watch(self, handler: Handler, *, timeout_seconds: float | None, memory_bytes: int | None, grace: float) -> None:
        """Look for processes that are gone, and end the trial if it is over a limit."""
        for rank in [rank for rank, worker in self._living.items() if worker.ended]:
            # What it has sent counts, even after its end.
            if not self._living[rank].connection.poll():
                # Everything that it sent has been read.
                self._note_death(rank)
                self._settle_end(handler)
                return
        if self._failed:
            self._settle_end(handler)
            return
        if timeout_seconds is not None and self._ranks[0].seconds > timeout_seconds:
            self._terminate_all("timeout", f"it ran longer than timeout_seconds={timeout_seconds:g}", grace)
        # All ranks share the limit: the trial is one.
        if memory_bytes is not None and not self._ranks[0].terminating:
            resident = sum(worker.resident_bytes() for worker in self._living.values())
            if resident > memory_bytes:
                message = f"it held {resident:,} bytes of memory, above memory_bytes={memory_bytes:,}"
                self._terminate_all("out_of_memory", message, grace)
        for worker in self._living.values():
            worker.enforce()

    def leave(self) -> None:
        """Ask the trial to save at its next step and to end, if it can; asked once."""
        if not self._told_to_leave and 0 in self._living:
            self._told_to_leave = True
            # One that is gone says so itself.
            with suppress(OSError):
                self._living[0].connection.send(LEAVE)

    def kill(self) -> None:
        """End all processes at once."""
        for worker in self._ranks:
            worker.close(kill=True)

    def _terminate_all(self, failure: str, message: str, grace: float) -> None:
        for worker in self._ranks:
            worker.terminate(failure, message, grace)

    def _note_death(self, rank: int) -> None:
        # The reason of its end is known to its process's guard alone.
        self._silent.append((rank, self._living.pop(rank).outcome()))

    def _note_end(self, rank: int, outcome: Outcome) -> None:
        del self._living[rank]
        # Only rank 0 reports, so its outcome is the trial's if all end well.
        if rank == 0:
            self._first = outcome
        if isinstance(outcome, Raised | Died):
            if not self._failed:
                self._failed_at = time.monotonic()
            self._failed.append((rank, outcome))

    def _settle_end(self, handler: Handler) -> None:
        """After the end of a rank: see whether that is the end of the trial."""
        if not (self._silent or self._failed):
            if not self._living:
                self.outcome = self._first
            return
        # A rank may fail because another is gone, and say so before the kernel has closed the line of that one: the
        # files of a process that was killed are closed in no order that one can rely on.
        for rank in [rank for rank, worker in self._living.items() if worker.connection.poll()]:
            self.serve(rank, handler)
        if self._living and self._ranks[0].terminating:
            # Each rank has the grace period to end by itself.
            return
        # Another rank may yet turn out to have gone away, which would be the cause.
        if self._living and not self._silent and time.monotonic() < self._failed_at + _CAUSE_SECONDS:
            return
        for worker in self._living.values():
            worker.close(kill=True)
        self._living.clear()
        # A rank that went away is the cause; those that failed may have failed because of it.
        rank, outcome = (self._silent or self._failed)[0]
        of_all = len(self._ranks) == 1 or self._ranks[0].terminating
        self.outcome = outcome if of_all else _of_rank(rank, outcome)


def _of_rank(rank: int, outcome: Outcome) -> Outcome:
    """Return the outcome with the rank that it comes from; what is to be told to the ledger comes from rank 0."""
    records = outcome.records if rank == 0 else ()
    if isinstance(outcome, Raised):
        return replace(outcome, message=f"rank {rank}: {outcome.message}", records=records)
    if isinstance(outcome, Died):
        return replace(outcome, why=f"rank {rank}: {outcome.why}", records=records)
    return outcome


def free_address(host: str = "127.0.0.1") -> str:
    """Return an address of this machine where nobody listens.

    It is used only seconds later. Ports that the system gives to outgoing connections would often be taken by then.
    """
    for _ in range(_TRIES):
        # Drawn at random, since other studies on this host look for ports as well.
        address = host, _FIRST_PORT + secrets.randbelow(_PORTS)
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(address)
            return f"{host}:{address[1]}"
    raise EngineError(f"no free port on {host} in {_TRIES} tries from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1}")
