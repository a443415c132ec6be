"""Runs one trial on several worker processes, one per rank, that begin together and end together (a gang)."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainwright.engine.process.listener import Worker
from trainwright.engine.protocol import Died, Handler, Outcome, Raised
from trainwright.train.assignment import Assignment

__all__ = ["LEAVE", "Gang"]

_CAUSE_SECONDS = 1.0
"""After the failure of a rank, for which another may turn out to have been its cause."""

LEAVE = ("leave",)
"""What a worker is sent whose trial is to save at its next step and to end."""


class Gang:
    """One assignment on the workers of its ranks. Rank 0 speaks with the handler; if one fails the others are killed.

    It begins once all its processes are there, all or none.
    """

    def __init__(self, assignment: Assignment, workers: list[Worker]) -> None:
        self.assignment = assignment
        self.workers = workers
        """The workers of the ranks."""
        self.begun = False
        self.outcome: Outcome | None = None
        """How the trial ended, once all its processes have."""
        self._living: dict[int, Worker] = {}
        self._silent: list[tuple[int, Outcome]] = []  # ranks whose process went away
        self._failed: list[tuple[int, Outcome]] = []  # ranks that could still say why
        self._failed_at = 0.0  # when the first of them did
        self._first: Outcome | None = None  # of rank 0
        self._told_to_leave = False

    def begin(self, message: Callable[[Assignment], tuple[Any, ...]]) -> None:
        """Begin if all processes are there; `message(assignment)` is what a worker is sent to run it."""
        if self.begun or not all(worker.connected for worker in self.workers):
            return
        size = len(self.workers)
        try:
            # The ranks meet on the node of rank 0.
            address = self.workers[0].find_address() if size > 1 else ""
        except OSError:
            # Its node is gone, as the next look will find.
            return
        self.begun = True
        self._living = dict(enumerate(self.workers))
        for rank, worker in self._living.items():
            worker.run(message(replace(self.assignment, rank=rank, world_size=size, address=address)))

    @property
    def reusable(self) -> bool:
        """Whether its processes may run other trials. Of a group that broke none may: its threads live on in them."""
        troubled = self._silent or (self._failed and len(self.workers) > 1)
        return not troubled and not any(worker.terminating for worker in self.workers)

    @property
    def ending(self) -> bool:
        """Whether its end has to be looked for: a rank has failed, or was told to end."""
        return bool(self._failed) or any(worker.terminating for worker in self.workers)

    def serve(self, worker: Worker, handler: Handler) -> None:
        """Deal with what the worker of a rank has to say."""
        rank = self.workers.index(worker)
        if rank not in self._living:
            # It was killed after it had spoken.
            return
        try:
            kind, content = worker.connection.recv()
            if kind == "facts":
                worker.connection.send(handler.facts(self.assignment.trial, content))
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
            if self._living[rank].connection.poll():
                self.serve(self._living[rank], handler)
            else:
                self._note_death(rank)
                self._settle_end(handler)
            return
        if self._failed:
            self._settle_end(handler)
            return
        if timeout_seconds is not None and self.begun and self.workers[0].seconds > timeout_seconds:
            for worker in self.workers:
                worker.terminate("timeout", f"it ran longer than timeout_seconds={timeout_seconds:g}", grace)
        for worker in self._living.values():
            worker.guard(memory_bytes, grace)

    def leave(self) -> None:
        """Ask the trial to save at its next step and to end, if it can; asked once."""
        if not self._told_to_leave and 0 in self._living:
            self._told_to_leave = True
            self.workers[0].send(LEAVE)

    def kill(self) -> None:
        """End all processes at once."""
        for worker in self.workers:
            worker.close(kill=True)

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
        for worker in [worker for worker in self._living.values() if worker.connection.poll()]:
            self.serve(worker, handler)
        terminating = all(worker.terminating for worker in self.workers)
        if self._living and terminating:
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
        of_all = len(self.workers) == 1 or terminating
        self.outcome = outcome if of_all else _of_rank(rank, outcome)


def _of_rank(rank: int, outcome: Outcome) -> Outcome:
    """Return the outcome with the rank that it comes from; what is to be told to the ledger comes from rank 0."""
    records = outcome.records if rank == 0 else ()
    if isinstance(outcome, Raised):
        return replace(outcome, message=f"rank {rank}: {outcome.message}", records=records)
    if isinstance(outcome, Died):
        return replace(outcome, why=f"rank {rank}: {outcome.why}", records=records)
    return outcome
