"""An engine that passes everything on to another one, for engines that change only a part of what it does."""

from pathlib import Path

from trainwright.engine.protocol import Block, Engine, Handler, TrainFunction
from trainwright.train import Assignment

__all__ = ["EngineWrapper"]


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
    def gone(self) -> frozenset[int]:
        """The slots of nodes that it has lost."""
        return self._inside.gone

    @property
    def holds(self) -> bool:
        """Whether a trial can be kept waiting at a report."""
        return self._inside.holds

    def devices(self, block: Block) -> tuple[str, ...]:
        """Return the names of a block's devices."""
        return self._inside.devices(block)

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Make ready to run `train`."""
        self._inside.open(train, directory)

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Start an assignment on free slots."""
        self._inside.launch(assignment, block)

    def answer(self, trial: int, goes_on: bool) -> None:
        """Tell a trial that waits at a report whether it goes on."""
        self._inside.answer(trial, goes_on)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Hand what has happened to `handler`, waiting for at most `timeout_seconds`."""
        self._inside.poll(handler, timeout_seconds)

    def close(self) -> None:
        """End whatever still runs."""
        self._inside.close()
