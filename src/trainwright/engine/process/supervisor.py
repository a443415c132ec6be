"""Supervises worker processes, in the loop that every such engine runs: starts gangs, takes reports, detects deaths.

Engines differ in where a process is started: here (Local), by a member on another node (Nodes), or by an actor (Ray).
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from trainwright.engine.function_reference import FunctionReference
from trainwright.engine.process.gang import Gang
from trainwright.engine.process.listener import Worker, WorkerListener
from trainwright.engine.process.worker_process import log_path
from trainwright.engine.protocol import SPEEDS, Block, Died, Handler, TrainFunction
from trainwright.errors import EngineError
from trainwright.settings import Settings
from trainwright.train.assignment import Assignment
from trainwright.validators import number, optional

__all__ = ["Supervisor"]

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
