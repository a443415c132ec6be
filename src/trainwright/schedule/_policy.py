"""What an allocation policy is: it gives devices to work, and knows nothing of quality."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["AllocationPolicy", "Block", "Desk", "Grant", "Work"]

Block = tuple[int, ...]
"""The slots of an engine that one trial holds."""


@dataclass(frozen=True, slots=True)
class Work:
    """A trial to start or to go on with."""

    trial: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Let `work` run on `block`."""

    work: Work
    block: Block


class Desk(Protocol):
    """What a policy deals with: the engine's slots on one side, work that waits on the other."""

    @property
    def free(self) -> Sequence[int]:
        """The free slots, ascending."""

    @property
    def slots(self) -> int:
        """All slots of the engine."""

    def next_work(self) -> Work | None:
        """Return the next piece of work (interrupted before promoted before new), or None. It is handed out once."""


@runtime_checkable
class AllocationPolicy(Protocol):
    """With how much. Asked after every event; grants only what is free."""

    def check(self, slots: int) -> None:
        """Refuse an engine of `slots` slots on which no trial could ever start."""

    def plan(self, desk: Desk) -> Sequence[Grant]:
        """Return the grants to make now."""
