"""The PyCOMPSs engine: a segment of a trial, from its last checkpoint to its rule's next rung, is one task.

After Tejedor et al., PyCOMPSs: parallel computational workflows in Python (IJHPCA 31 (2017)).
"""

import os
import sys
from collections import deque
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainwright.engine._engine import Block, Handler, Quiet, TrainFunction
from trainwright.engine._function import FunctionReference
from trainwright.errors import EngineError, MissingExtra
from trainwright.ledger import Record
from trainwright.schedule import AllocationPolicy, Fixed, FixedEpochs, PromotionRule, Scheduler
from trainwright.train import Assignment

__all__ = ["PyCOMPSs"]


class PyCOMPSs:
    """Run up to `slots` trials at once as PyCOMPSs tasks, each on `cpus` processors and `gpus` GPUs of a node.

    A running task can be neither stopped nor resized, and tells nothing before its end. So a task ends at each rung of
    `scheduler`, which is the study's own: its reports are judged then, and a trial that may go on does so from its
    checkpoint in a next task. Rules that judge between rungs, and policies that change sizes, are refused. Tasks whose
    process dies are started again by the runtime. Without the runtime (plain `python`) PyCOMPSs calls tasks one after
    another in this process. `poll` waits for the task that was started first: a future cannot be asked.
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
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise EngineError(f"PyCOMPSs.{name}: got {value!r}; allowed: a whole number >= {least}")
        if find_spec("pycompss") is None:
            raise MissingExtra(
                "tw.PyCOMPSs needs pycompss, which needs Java and compiles its runtime: pip install pycompss; "
                f"or run the same program on tw.Local(workers={slots})"
            )
        self._slots, self._units, self._gpu = slots, {"CPUS": cpus, "GPUS": gpus}, gpus > 0
        self._ends = _ends(Scheduler.of(scheduler))
        self._reference: FunctionReference | None = None
        self._waiting: deque[Assignment] = deque()
        self._started: deque[tuple[Assignment, Any]] = deque()

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

    def open(self, train: TrainFunction, directory: Path | None) -> None:  # noqa: ARG002 -- COMPSs keeps its own logs
        """Find out how tasks will find `train`."""
        self._reference = FunctionReference.of(train)
        for name, value in self._units.items():  # the task's constraints are read from here when it is first imported
            os.environ[f"TRAINWRIGHT_{name}"] = str(value)

    def devices(self, block: Block | range) -> tuple[str, ...]:
        """Return a name for each slot; which processors and GPUs they are, PyCOMPSs knows."""
        return tuple(f"compss:{slot}" for slot in block)

    @property
    def holds(self) -> bool:
        """No: a task is heard when it has ended."""
        return False

    def launch(self, assignment: Assignment, block: Block | range) -> None:  # noqa: ARG002 -- PyCOMPSs places it
        """Put the assignment in the queue of `poll`."""
        self._waiting.append(assignment)

    def answer(self, trial: int, goes_on: bool) -> None:
        """Nothing waits."""

    def poll(self, handler: Handler, timeout_seconds: float) -> None:  # noqa: ARG002 -- a task's end is waited for
        """Start a task for each assignment that waits, and wait for the one that was started first."""
        from pycompss.api.api import compss_wait_on

        while self._waiting:
            self._start(self._waiting.popleft())
        if not self._started:
            return
        assignment, future = self._started.popleft()
        batches, outcome, reached = compss_wait_on(future)
        trial, told = assignment.trial, assignment.reported_epoch
        for batch in batches:
            news = [record for record in batch if _epoch(record) > assignment.reported_epoch]
            told = max([told, *(_epoch(record) for record in news if record.kind == "reported")])
            if news and not handler.facts(trial, news):
                metrics = next((dict(r.body["metrics"]) for r in reversed(news) if r.kind == "reported"), {})
                handler.exited(trial, Quiet(metrics=metrics, epoch=told, seconds=outcome.seconds))
                return
        if not (reached and isinstance(outcome, Quiet)):
            handler.exited(trial, outcome)
        elif not outcome.records or handler.facts(trial, list(outcome.records)):
            self._waiting.append(replace(assignment, reported_epoch=told))
        else:
            handler.exited(trial, replace(outcome, records=()))

    def _start(self, assignment: Assignment) -> None:
        from trainwright.engine._compss import segment

        until = next((end for end in self._ends if end > assignment.reported_epoch), None)
        try:
            future = segment(self._reference, assignment, until, self._gpu)
        except KeyboardInterrupt:  # in this process, without a runtime: its end is told by the next poll
            self._started.append((assignment, ([], Quiet(), False)))
            raise
        self._started.append((assignment, future))

    def close(self) -> None:
        """Forget what was not started, and wait for what was: a task cannot be ended."""
        from pycompss.api.api import compss_wait_on

        self._waiting.clear()
        while self._started:
            compss_wait_on(self._started.popleft()[1])


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
