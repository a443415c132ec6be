"""An engine that asks a verdict before it starts a trial, such as whether its training fits into memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainwright.engine.protocol import Block, Died, Engine, Handler, Outcome, Raised, TrainFunction
from trainwright.train import Assignment

__all__ = ["REJECTED", "Admission", "AdmissionControl"]

REJECTED = "rejected"
"""The failure of a trial that was never started."""


class Admission(Protocol):
    """What a verdict comes to; `trainwright.plan.judge` gives such."""

    @property
    def runs(self) -> bool:
        """Whether the trial may start."""

    @property
    def sentence(self) -> str:
        """Why, with the numbers."""


@dataclass(slots=True)
class AdmissionControl:
    """Any engine, but that a trial starts only if `verdict(configuration, devices)` says that it runs.

    One that does not ends at once as failed, with the verdict's sentence and without having had its devices, and the
    searcher is told so. A trial that has run before and may not go on with other devices goes back to those it had.
    """

    engine: Engine
    verdict: Callable[[Mapping[str, Any], int], Admission]
    _refused: list[tuple[int, Outcome]] = field(default_factory=list, init=False)
    _ran: set[int] = field(default_factory=set, init=False)

    @property
    def slots(self) -> int:
        """How many blocks of one slot it has."""
        return self.engine.slots

    @property
    def slots_per_node(self) -> int:
        """How many of them are in one node."""
        return self.engine.slots_per_node

    @property
    def gone(self) -> frozenset[int]:
        """The slots of nodes that it has lost."""
        return self.engine.gone

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Make ready to run `train`."""
        self.engine.open(train, directory)

    def devices(self, block: Block) -> tuple[str, ...]:
        """Return the names of a block's devices."""
        return self.engine.devices(block)

    @property
    def holds(self) -> bool:
        """Whether a trial can be kept waiting at a report."""
        return self.engine.holds

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Start an assignment, or keep its refusal for the next `poll`."""
        said = self.verdict(assignment.params, len(block))
        if said.runs:
            self._ran.add(assignment.trial)
            self.engine.launch(assignment, block)
        elif assignment.trial in self._ran:
            self._refused.append((assignment.trial, Died(why=said.sentence)))
        else:
            self._refused.append((assignment.trial, Raised(failure=REJECTED, message=said.sentence)))

    def answer(self, trial: int, goes_on: bool) -> None:
        """Tell a trial that waits at a report whether it goes on."""
        self.engine.answer(trial, goes_on)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Hand refusals to `handler`, and whatever else has happened."""
        refused, self._refused = self._refused, []
        for trial, outcome in refused:
            handler.exited(trial, outcome)
        self.engine.poll(handler, 0.0 if refused else timeout_seconds)

    def close(self) -> None:
        """End whatever still runs."""
        self._refused.clear()
        self.engine.close()
