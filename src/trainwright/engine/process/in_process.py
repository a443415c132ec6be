"""The engine for debugging: trials run one after another in the calling process, where breakpoints work."""

import time
from collections import deque
from pathlib import Path

from trainwright.engine.process.run_assignment import run_assignment
from trainwright.engine.protocol import Block, Died, Handler, TrainFunction
from trainwright.ledger import Record
from trainwright.train import Assignment

__all__ = ["InProcess"]


class InProcess:
    """Runs trials in the calling process; `tw.Local(workers=0)` is this."""

    def __init__(self, gpus: tuple[str, ...] = ()) -> None:
        self._train: TrainFunction | None = None
        self._queue: deque[Assignment] = deque()
        self._gpus = gpus
        self._interrupted: int | None = None  # the trial that Ctrl-C has ended, until a poll tells so
        self._since = 0.0

    @property
    def slots(self) -> int:
        """One."""
        return 1

    @property
    def slots_per_node(self) -> int:
        """All slots: there is one node."""
        return self.slots

    @property
    def gone(self) -> frozenset[int]:
        """None: this machine is not lost."""
        return frozenset()

    def open(self, train: TrainFunction, directory: Path | None) -> None:  # noqa: ARG002 -- output stays where it is
        """Keep the function; anything callable will do."""
        self._train = train

    def devices(self, block: Block) -> tuple[str, ...]:  # noqa: ARG002 -- there is one block
        """Return the first GPU, if there is one, else the CPU."""
        return (f"cuda:{self._gpus[0]}",) if self._gpus else ("cpu:0",)

    @property
    def holds(self) -> bool:
        """No: the process that would answer runs the trial itself."""
        return False

    def launch(self, assignment: Assignment, block: Block) -> None:  # noqa: ARG002 -- likewise
        """Put the assignment in the queue of `poll`."""
        self._queue.append(assignment)

    def answer(self, trial: int, goes_on: bool) -> None:
        """Nothing waits."""

    def poll(self, handler: Handler, timeout_seconds: float) -> None:  # noqa: ARG002 -- the work is the waiting
        """Run one assignment to its end; of one that Ctrl-C has ended, tell so."""
        if self._interrupted is not None:
            trial, self._interrupted = self._interrupted, None
            why = "the process that ran it was interrupted"
            handler.exited(trial, Died(why=why, blame=False, seconds=time.monotonic() - self._since))
        elif self._queue and self._train is not None:
            assignment = self._queue.popleft()
            channel = _Direct(handler, assignment.trial)
            self._since = time.monotonic()
            try:
                outcome = run_assignment(self._train, assignment, channel, gpu=bool(self._gpus))
            except KeyboardInterrupt:
                self._interrupted = assignment.trial
                raise
            if channel.trouble is not None:
                raise channel.trouble
            handler.exited(assignment.trial, outcome)

    def close(self) -> None:
        """Forget what was not started."""
        self._queue.clear()
        self._interrupted = None


class _Direct:
    def __init__(self, handler: Handler, trial: int) -> None:
        self._handler = handler
        self._trial = trial
        self.trouble: Exception | None = None

    def exchange(self, records: list[Record]) -> bool:
        try:
            return self._handler.facts(self._trial, records) is not False
        except Exception as error:  # noqa: BLE001 -- the handler's trouble is no failure of the trial: `poll` raises it
            self.trouble = error
            return False
