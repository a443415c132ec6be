"""What an allocation policy is: it gives devices to work, and knows nothing of quality but what the desk tells."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from trainwright.schedule.allocator.allocator import Desk
    from trainwright.schedule.allocator.free_slots import Room
    from trainwright.schedule.rules.promotion_rule import PromotionRule

__all__ = ["Action", "AllocationPolicy", "Block", "Go", "Hold", "Look", "Move", "Planner", "Rest", "Start", "Work"]

Block = tuple[int, ...]
"""The slots of an engine that one trial holds, ascending."""


@dataclass(frozen=True, slots=True)
class Work:
    """A trial to start or to go on with, after `epoch` epochs."""

    trial: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Let `work` run on `block`."""

    work: Work
    block: Block


@dataclass(frozen=True, slots=True)
class Move:
    """At its next checkpoint the running `trial` goes on on `block`, which is held for it from now on."""

    trial: int
    block: Block


@dataclass(frozen=True, slots=True)
class Rest:
    """At its next checkpoint the running `trial` gives its devices back, until it is started again."""

    trial: int


@dataclass(frozen=True, slots=True)
class Look:
    """Plan again when the running `trial` is at its next checkpoint, whatever its rule says there."""

    trial: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Let `trial`, which is at a checkpoint, wait there on its devices until it is moved or told to go."""

    trial: int


@dataclass(frozen=True, slots=True)
class Go:
    """Let `trial`, which was held at a checkpoint, train on where it is."""

    trial: int


Action = Start | Move | Rest | Look | Hold | Go


class Planner(Protocol):
    """A policy at work: it may remember between plans, but only what desks have told it."""

    def plan(self, desk: "Desk") -> None:
        """Start, move and rest trials by the desk's methods, as far as devices are free."""


@runtime_checkable
class AllocationPolicy(Protocol):
    """With how much. A frozen configuration; its planner is asked after every event."""

    @property
    def start(self) -> int:
        """The devices of a new trial."""

    @property
    def resizes(self) -> bool:
        """Whether it changes the devices of trials that run."""

    def check(self, slots: int, slots_per_node: int, rule: "PromotionRule") -> str | None:
        """Refuse an engine on which no trial could ever start, or a rule that the policy cannot work with.

        Return a sentence if the user should know of something before the study starts.
        """

    def room(self, slots: int, slots_per_node: int) -> "Room":
        """Return the free slots, in the blocks that this policy grants."""

    def planner(self) -> Planner:
        """Return a planner that has seen nothing yet."""
