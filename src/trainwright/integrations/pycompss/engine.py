"""The PyCOMPSs engine: a segment of a trial, from its last checkpoint to its rule's next rung, is one task.

After Tejedor et al., PyCOMPSs: parallel computational workflows in Python (IJHPCA 31 (2017)).
"""

import os
import sys
import time
import uuid
from collections import deque
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.engine.function_reference import FunctionReference
from trainwright.engine.protocol import Block, Handler, StoppedEarly, TrainFunction
from trainwright.errors import EngineError, MissingExtra
from trainwright.ledger import Record
from trainwright.schedule import AllocationPolicy, Fixed, FixedEpochs, PromotionRule, Scheduler
from trainwright.train.assignment import Assignment
from trainwright.validators import check, integer

__all__ = ["PyCOMPSs"]


_LOOK_SECONDS = 0.05


class _Started(NamedTuple):
    """A task under way; `ended` is the file that it leaves at its end."""

    assignment: Assignment
    future: Any
    ended: Path | None


class PyCOMPSs:
    """Run up to `slots` trials at once as PyCOMPSs tasks, each on `cpus` processors and `gpus` GPUs of a node.

    A running task can be neither stopped nor resized, and tells nothing before its end. So a task ends at each rung of
    `scheduler`, which is the study's own: its reports are judged then, and a trial that may go on does so from its
    checkpoint in a next task. Rules that judge between rungs, and policies that change sizes, are refused. Tasks whose
    process dies are started again by the runtime. Without the runtime (plain `python`) PyCOMPSs calls tasks one after
    another in this process. A future cannot be asked whether it is there: each task leaves a file in
    the study's directory at its end, and `poll` looks for these; without a directory it waits for the task that was
    started first, and slots idle behind a long one.
    """

    def __init__(
        self,
        scheduler: Scheduler | PromotionRule | AllocationPolicy | None = None,
        *,
        slots: int = 1,
        cpus: int = 1,
        gpus: int = 0,
    ) -> None:
        for name, value, least in (("slots", slots, 1), ("cpus", cpus, 1), ("gpus", gpus, 0)):
            check(value, integer(minimum=least), f"PyCOMPSs.{name}", EngineError)
        if find_spec("pycompss") is None:
            raise MissingExtra(
                "tw.PyCOMPSs needs pycompss, which needs Java and compiles its runtime: pip install pycompss; "
                f"or run the same program on tw.Local(workers={slots})"
            )
        self._slots, self._units, self._gpu = slots, {"CPUS": cpus, "GPUS": gpus}, gpus > 0
        self._ends = _ends(Scheduler.of(scheduler))
        self._reference: FunctionReference | None = None
        self._waiting: deque[Assignment] = deque()
        self._started: list[_Started] = []
        self._ended: Path | None = None  # where tasks say that they have ended

    @property
    def slots(self) -> int:
        """How many trials run at once."""
        return self._slots

    @property
    def slots_per_node(self) -> int:
        """One: PyCOMPSs places each task by itself."""
        return 1

    @property
    def gone(self) -> frozenset[int]:
        """None: its runtime sees to that."""
        return frozenset()

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how tasks will find `train`, and where they say that they have ended."""
        self._reference = FunctionReference.of(train)
        self._ended = None if directory is None else directory.resolve() / "compss"
        if self._ended is not None:
            self._ended.mkdir(exist_ok=True)
        for name, value in self._units.items():  # the task's constraints are read from here when it is first imported
            os.environ[f"TRAINWRIGHT_{name}"] = str(value)

    def devices(self, block: Block | range) -> tuple[str, ...]:
        """Return a name for each slot; which processors and GPUs they are, PyCOMPSs knows."""
        return tuple(f"compss:{slot}" for slot in block)

    def launch(self, assignment: Assignment, block: Block | range) -> None:  # noqa: ARG002 -- PyCOMPSs places it
        """Put the assignment in the queue of `poll`."""
        self._waiting.append(assignment)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Start a task for each assignment that waits, and deal with one that has ended."""
        from pycompss.api.api import compss_wait_on

        while self._waiting:
            self._start(self._waiting.popleft())
        started = self._next(timeout_seconds)
        if started is None:
            return
        assignment = started.assignment
        # It has ended, so this only fetches its answer.
        batches, outcome, reached = compss_wait_on(started.future)
        trial, told = assignment.trial, assignment.reported_epoch
        for batch in batches:
            # A task begins at its checkpoint and may repeat epochs that were told.
            news = [record for record in batch if _epoch(record) > assignment.reported_epoch]
            told = max([told, *(_epoch(record) for record in news if record.kind == "reported")])
            if news and not handler.facts(trial, news):
                metrics = next((dict(r.body["metrics"]) for r in reversed(news) if r.kind == "reported"), {})
                handler.exited(trial, StoppedEarly(metrics=metrics, epoch=told, seconds=outcome.seconds))
                return
        if not (reached and isinstance(outcome, StoppedEarly)):
            handler.exited(trial, outcome)
        elif not outcome.records or handler.facts(trial, list(outcome.records)):
            self._waiting.append(replace(assignment, reported_epoch=told))
        else:
            handler.exited(trial, replace(outcome, records=()))

    def _next(self, timeout_seconds: float) -> "_Started | None":
        """Return the first task that has ended, None if there is none in time."""
        deadline = time.monotonic() + timeout_seconds
        while self._started:
            for place, started in enumerate(self._started):
                if started.ended is None or started.ended.exists():
                    del self._started[place]
                    if started.ended is not None:
                        started.ended.unlink(missing_ok=True)
                    return started
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_SECONDS)
        return None

    def _start(self, assignment: Assignment) -> None:
        from trainwright.integrations.pycompss._segment import segment

        # The next rung above what was reported: there the rule is asked.
        until = next((end for end in self._ends if end > assignment.reported_epoch), None)
        ended = None if self._ended is None else self._ended / uuid.uuid4().hex
        try:
            future = segment(self._reference, assignment, until, self._gpu, ended)
        except KeyboardInterrupt:  # in this process, without a runtime: its end is told by the next poll
            self._started.append(_Started(assignment, ([], StoppedEarly(), False), None))
            raise
        self._started.append(_Started(assignment, future, ended))

    def close(self) -> None:
        """Forget what was not started, and wait for what was: a task cannot be ended."""
        from pycompss.api.api import compss_wait_on

        self._waiting.clear()
        while self._started:
            started = self._started.pop(0)
            compss_wait_on(started.future)
            if started.ended is not None:
                started.ended.unlink(missing_ok=True)


def _ends(scheduler: Scheduler) -> tuple[int, ...]:
    """Return the epochs at which tasks end, or refuse what needs a say while they run."""
    rule, policy = scheduler.rule, scheduler.policy
    if not isinstance(policy, Fixed) or policy.devices != 1:
        raise EngineError(
            f"PyCOMPSs: got the policy {policy!r}, but a task has one slot and keeps it; allowed: Fixed(1), "
            "with cpus and gpus as the size of a slot"
        )
    rungs = () if isinstance(rule, FixedEpochs) else getattr(rule, "rungs", None)
    if rungs is None:
        raise EngineError(
            f"PyCOMPSs: got the rule {rule!r}, which may stop a trial at any epoch, but a running task cannot be "
            "stopped; allowed: FixedEpochs, or a rule with rungs such as ASHA(max_epochs=27)"
        )
    return tuple(rungs)


def _epoch(record: Record) -> int:
    """Return the epoch of a report; other records are never old."""
    return int(record.body["epoch"]) if record.kind == "reported" else sys.maxsize
