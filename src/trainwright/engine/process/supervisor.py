"""Supervises worker processes, in the loop that every such engine runs: starts gangs, takes reports, detects deaths.

A gang runs one trial on several worker processes, one per rank, that begin together and end together.

Engines differ in where a process is started: here (Local), by a member on another node (Nodes), or by an actor (Ray).
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from trainwright.engine.function_reference import FunctionReference
from trainwright.engine.process.listener import Worker, WorkerListener
from trainwright.engine.process.worker_process import log_path
from trainwright.engine.protocol import SPEEDS, Block, Died, Handler, Outcome, Raised, TrainFunction
from trainwright.errors import EngineError
from trainwright.settings import Settings
from trainwright.train.assignment import Assignment
from trainwright.validators import number, optional

__all__ = ["LEAVE", "Gang", "Supervisor"]

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


_LIMIT = optional(number(above=0), words="None for no limit")
_LOOK_SECONDS = 0.25
"""How often processes that have ended and times that are over are looked for; reports wait for none of this."""


@dataclass(eq=False, kw_only=True)
class Supervisor(Settings, ABC, error=EngineError):
    """What engines of worker processes have in common; a subclass says how a process is started, and which are lost."""

    timeout_seconds: Annotated[float | None, _LIMIT, "seconds of a run at most"] = None
    memory_bytes: Annotated[int | None, _LIMIT, "resident memory of a process at most"] = None
    grace_seconds: Annotated[float, number(minimum=0), "seconds to end by itself"] = 5.0
    speeds: Annotated[Mapping[str, float], SPEEDS, "relative speeds of devices"] = field(default_factory=dict)
    fresh_process = False
    """Whether each trial has a new process."""
    _gpu = False
    """Whether trials train on GPUs."""

    def _clear(self) -> None:
        """Forget everything that belongs to one opening."""
        self._listener: WorkerListener | None = None
        self._reference: FunctionReference | None = None
        self._directory: Path | None = None
        self._idle: dict[range, Worker] = {}
        self._gangs: dict[int, Gang] = {}  # by trial
        self._owners: dict[Worker, Gang] = {}
        self._looked = 0.0

    # What subclasses say.

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many slots there are."""

    @property
    def gone(self) -> frozenset[int]:
        """The slots of nodes that are lost: none here."""
        return frozenset()

    @abstractmethod
    def _start_worker(self, part: range) -> Worker:
        """Start a worker process for some slots."""

    def _divide_block(self, block: Block) -> list[range]:
        """Return the slots of each process of a trial: one each."""
        return [range(slot, slot + 1) for slot in block]

    def _find_trouble(self, worker: Worker) -> str:  # noqa: ARG002 -- a process of this machine is there at once
        """Return why a process will not come; "" while it may."""
        return ""

    def _handle_other(self, process: Any) -> None:
        """Deal with whoever speaks and is no worker of a trial: a process that waits has ended, or a member."""
        self._require_listener().forget(process)

    # Opening, launching, polling, closing.

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`; no process is started before the first launch."""
        self._reference = FunctionReference.of(train)
        self._directory = None if directory is None else directory.resolve()
        if self._listener is None:
            self._listener = WorkerListener()

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Hand the assignment to a worker of each part of the block; start those that are not there.

        For a trial that may grow the processes that it would grow into are started as well.
        """
        lost = bool(self.gone.intersection(block))
        parts = [] if lost else self._divide_block(block)
        if parts:
            # How many devices each process has: with one process for all of them, the whole block.
            assignment = replace(assignment, devices_each=len(block) // len(parts))
        gang = self._gangs[assignment.trial] = Gang(assignment, [self._take_worker(part) for part in parts])
        self._owners.update(dict.fromkeys(gang.workers, gang))
        # The driver planned before it knew of a loss: told at the next poll, it plans again.
        if lost:
            gang.outcome = Died(why="its node is gone", blame=False)
        else:
            gang.begin(self._make_message)
            if assignment.may_grow and len(parts) == len(block):
                self._warm_up(block)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Serve the workers that have something to say, and look for those that have gone."""
        deadline = time.monotonic() + timeout_seconds
        if handler.leaves():
            for gang in self._gangs.values():
                gang.leave()
        told = self._settle_all(handler)
        while self._gangs and not told:
            left = deadline - time.monotonic()
            # All ranks of all trials in one wait, whose cost does not grow with silence.
            for process in self._require_listener().wait(min(left, self._pause_seconds())):
                owner = self._owners.get(process)
                if owner is None or not owner.begun:
                    self._handle_other(process)
                else:
                    told = True
                    owner.serve(process, handler)
            if left <= 0 or time.monotonic() - self._looked >= _LOOK_SECONDS:
                self._watch_all(handler)
            for gang in self._gangs.values():
                gang.begin(self._make_message)
            told |= self._settle_all(handler)
            if left <= 0:
                return

    def close(self) -> None:
        """Kill what runs, let idle workers go, leave no process behind."""
        for gang in self._gangs.values():
            gang.kill()
        _end_workers(self._idle.values())
        if self._listener is not None:
            self._listener.close()
        self._clear()

    # Workers and their trials.

    def _take_worker(self, part: range) -> Worker:
        """Return the idle process of some slots, or start one."""
        worker = self._idle.pop(part, None)
        if worker is not None and not worker.ended and not (worker.connected and worker.connection.poll()):
            return worker
        if worker is not None:
            # It went away while it waited: not this trial's doing.
            worker.close(kill=True)
        for other in [other for other in self._idle if set(other).intersection(part)]:
            # A worker for a block of another size: its memory is needed.
            self._idle.pop(other).close(kill=True)
        return self._start_worker(part)

    def _warm_up(self, block: Block) -> None:
        """Start processes on the free slots with which a block would double, and let them import what trials need.

        The import is then over when the trial grows, whose training would have to wait for it.
        """
        size = 2 * len(block)
        first = block[0] // size * size
        busy = {slot for worker in self._owners for slot in worker.part} | self.gone
        for slot in set(range(first, min(first + size, self.slots))) - busy:
            part = range(slot, slot + 1)
            if part not in self._idle:
                worker = self._idle[part] = self._take_worker(part)
                worker.greet(self._make_message(None))

    def _make_message(self, assignment: Assignment | None) -> tuple[Any, ...]:
        """Return what a worker is sent to run an assignment; without one, to import what it will need."""
        log = None if assignment is None else log_path(self._directory, assignment)
        return sys.path, sys.argv, self._reference, assignment, log, self._gpu

    def _pause_seconds(self) -> float:
        """Return after how long to look around: without limits, or an end to wait for, a message ends every wait."""
        limited = self.timeout_seconds is not None or self.memory_bytes is not None
        ending = any(gang.ending or not gang.begun for gang in self._gangs.values())
        return _LOOK_SECONDS if limited or ending else float("inf")

    def _watch_all(self, handler: Handler) -> None:
        """Look for processes that have ended, and times that are over."""
        self._looked = time.monotonic()
        for gang in self._gangs.values():
            if gang.begun:
                gang.watch(
                    handler,
                    timeout_seconds=self.timeout_seconds,
                    memory_bytes=self.memory_bytes,
                    grace=self.grace_seconds,
                )
                continue
            # No trial is to blame for processes that do not come.
            why = next(filter(None, map(self._find_trouble, gang.workers)), "")
            if why:
                gang.outcome = Died(why=why, blame=False)

    def _settle_all(self, handler: Handler) -> bool:
        """Tell of the trials that have ended, and keep their workers for the next; return whether there were any."""
        told = False
        for trial, gang in list(self._gangs.items()):
            if (outcome := gang.outcome) is None:
                continue
            del self._gangs[trial]
            for worker in gang.workers:
                del self._owners[worker]
                if gang.reusable and worker.connected and not worker.ended and not self.fresh_process:
                    self._idle[worker.part] = worker
                else:
                    worker.close(kill=not (self.fresh_process and gang.reusable))
            told = True
            handler.exited(trial, outcome)
        return told

    def _require_listener(self) -> WorkerListener:
        if self._listener is None:
            raise EngineError(f"{type(self).__name__}: it is not open; open it before launching or polling")
        return self._listener


def _end_workers(workers: Iterable[Worker]) -> None:
    """Let idle processes end, all at the same time."""
    ended = list(workers)
    for worker in ended:
        worker.close_connection()
    for worker in ended:
        worker.close(kill=False)
