"""Fixed: one size for all trials, first come, first served."""

from dataclasses import dataclass
from typing import Annotated

from trainwright.errors import ScheduleError
from trainwright.schedule.allocator.device_allocator import DeviceAllocator
from trainwright.schedule.allocator.free_slots import FixedBlocks, FreeSlots
from trainwright.schedule.rules.promotion_rule import PromotionRule
from trainwright.settings import Settings
from trainwright.validators import integer

__all__ = ["Fixed"]


@dataclass(frozen=True, slots=True)
class Fixed(Settings, error=ScheduleError):
    """Give every trial `devices` slots of the engine. O(log n) a grant."""

    devices: Annotated[int, integer(minimum=1)] = 1

    @property
    def start(self) -> int:
        """The one size."""
        return self.devices

    @property
    def resizes(self) -> bool:
        """Nothing changes its size."""
        return False

    def check(self, slots: int, slots_per_node: int, rule: PromotionRule) -> None:  # noqa: ARG002 -- the protocol's
        """Refuse an engine that is too small for one trial."""
        if self.devices > slots:
            raise ScheduleError(
                f"Fixed.devices: got {self.devices}, the engine has {slots} slots; allowed: 1 to {slots}, "
                "or a larger engine"
            )

    def free_slots(self, slots: int, slots_per_node: int) -> FreeSlots:
        """Return tiles of that size."""
        return FixedBlocks(slots, slots_per_node, self.devices)

    def planner(self) -> "Fixed":
        """Return itself: there is nothing to remember."""
        return self

    def plan(self, allocator: DeviceAllocator) -> None:
        """Fill the free slots, lowest first, while work waits."""
        while allocator.start_next():
            pass
