"""Admission control: refuses a trial before it starts, such as one whose training does not fit into memory."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from trainwright.engine.protocol import Block, Died, Engine, Handler, Outcome, Raised, TrainFunction
from trainwright.train.assignment import Assignment

__all__ = ["REJECTED", "Admission", "AdmissionControl", "EngineWrapper"]

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


class EngineWrapper:
    """Does what the engine inside does; subclasses override what they change."""

    def __init__(self, inside: Engine) -> None:
        self._inside = inside

    @property
    def slots(self) -> int:
        """How many blocks of one slot it has."""
        return self._inside.slots

    @property
    def slots_per_node(self) -> int:
        """How many of them are in one node."""
        return self._inside.slots_per_node

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """The slots of each node, () if all have as many."""
        return getattr(self._inside, "node_sizes", ())

    @property
    def speeds(self) -> Mapping[str, float]:
        """The speeds of devices that are not of speed 1, by patterns of their names."""
        return getattr(self._inside, "speeds", {})

    @property
    def gone(self) -> frozenset[int]:
        """The slots of nodes that it has lost."""
        return self._inside.gone

    def devices(self, block: Block) -> tuple[str, ...]:
        """Return the names of a block's devices."""
        return self._inside.devices(block)

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Make ready to run `train`."""
        self._inside.open(train, directory)

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Start an assignment on free slots."""
        self._inside.launch(assignment, block)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Hand what has happened to `handler`, waiting for at most `timeout_seconds`."""
        self._inside.poll(handler, timeout_seconds)

    def close(self) -> None:
        """End everything that still runs."""
        self._inside.close()


class AdmissionControl(EngineWrapper):
    """Any engine, but that a trial starts only if `verdict(configuration, devices)` says that it runs.

    One that does not ends at once as failed, with the verdict's sentence and without having had its devices, and the
    searcher is told so. A trial that has run before and may not go on with other devices goes back to those it had.
    """

    def __init__(self, engine: Engine, verdict: Callable[[Mapping[str, Any], int], Admission]) -> None:
        super().__init__(engine)
        self._verdict = verdict
        self._refused: list[tuple[int, Outcome]] = []  # for the next poll
        self._admitted: set[int] = set()

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Start an assignment, or keep its refusal for the next `poll`."""
        admission = self._verdict(assignment.params, len(block))
        if admission.runs:
            self._admitted.add(assignment.trial)
            super().launch(assignment, block)
        # What has run once fits somewhere; the study has to go back to those devices.
        elif assignment.trial in self._admitted:
            # It ran on other devices: no failure of the trial, which can go back to those.
            self._refused.append((assignment.trial, Died(why=admission.sentence)))
        else:
            self._refused.append((assignment.trial, Raised(failure=REJECTED, message=admission.sentence)))

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Hand refusals to `handler`, and whatever else has happened."""
        # Outcomes are told by `poll` alone, as those of every engine.
        refused, self._refused = self._refused, []
        for trial, outcome in refused:
            handler.exited(trial, outcome)
        super().poll(handler, 0.0 if refused else timeout_seconds)

    def close(self) -> None:
        """End everything that still runs."""
        self._refused.clear()
        super().close()
