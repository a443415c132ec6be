"""The protocol of allocation policies, and the actions by which they assign devices to trials."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from trainwright.schedule.allocator.device_allocator import DeviceAllocator
    from trainwright.schedule.allocator.free_slots import FreeSlots
    from trainwright.schedule.rules.promotion_rule import PromotionRule

__all__ = ["Action", "AllocationPolicy", "Block", "PendingTrial", "Planner"]

Block = tuple[int, ...]
"""The slots of an engine that one trial holds, ascending."""


@dataclass(frozen=True, slots=True)
class PendingTrial:
    """A trial to start, or to continue after `epoch` epochs."""

    trial: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """A change of a trial's devices, which the driver or the simulator carries out.

    "start" begins the trial, or continues it, on `block`. "resize" lets a running one continue on `block` from its next
    checkpoint; the block is reserved from now on. "preempt" takes its devices at its next checkpoint, until it is
    started again. "replan" plans again at its next checkpoint, whatever its rule decides there.
    """

    kind: Literal["start", "resize", "preempt", "replan"]
    trial: int
    block: Block = ()


class Planner(Protocol):
    """The decisions of a policy; it may keep state between plans, derived only from its allocator."""

    def plan(self, allocator: "DeviceAllocator") -> None:
        """Start, resize and preempt trials by the allocator's methods, as far as devices are free."""


@runtime_checkable
class AllocationPolicy(Protocol):
    """How many devices each trial gets. A frozen configuration; its planner is called after every event."""

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

    def free_slots(self, slots: int, slots_per_node: int) -> "FreeSlots":
        """Return the free slots, in the blocks that this policy grants."""

    def planner(self) -> Planner:
        """Return a planner that has seen nothing yet."""
