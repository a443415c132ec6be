"""Policies of a static size for all trials: Fixed, and BestStatic, the best of several sizes by prior simulation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from trainwright.errors import ScheduleError
from trainwright.schedule.allocator.device_allocator import DeviceAllocator
from trainwright.schedule.allocator.free_slots import FixedBlocks, FreeSlots
from trainwright.schedule.policies.allocation_policy import Planner
from trainwright.schedule.rules.promotion_rule import PromotionRule
from trainwright.settings import Settings
from trainwright.validators import each, integer

__all__ = ["BestStatic", "Fixed"]

_SIZES = each(integer(minimum=1), least=1, words="numbers of devices >= 1, such as (1, 2, 4)")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class BestStatic(Settings, error=ScheduleError):
    """The `Fixed` of `sizes` that ends first in simulations: a baseline, which `study.simulate` resolves.

    It does not run by itself: simulate it, and run the `Fixed` that the forecast names.
    """

    sizes: Annotated[Sequence[int], _SIZES] = (1, 2, 4, 8)

    def check_together(self) -> None:
        """Make a tuple of the list of a study file."""
        # Frozen and hashable, as other policies are.
        object.__setattr__(self, "sizes", tuple(self.sizes))

    @property
    def start(self) -> int:
        """The smallest."""
        return min(self.sizes)

    @property
    def resizes(self) -> bool:
        """Nothing changes its size."""
        return False

    def choices(self, slots: int) -> list[Fixed]:
        """Return the policies to choose from on so many slots."""
        return [Fixed(size) for size in sorted(set(self.sizes)) if size <= slots]

    def check(self, slots: int, slots_per_node: int, rule: PromotionRule) -> None:  # noqa: ARG002 -- the protocol's
        """Refuse to run: the choice is a simulation's."""
        raise ScheduleError(
            f"BestStatic chooses one of the sizes {', '.join(map(str, self.sizes))} by simulation; "
            "give it to study.simulate, and run the Fixed that its forecast names"
        )

    def free_slots(self, slots: int, slots_per_node: int) -> FreeSlots:
        """Return that of the smallest size."""
        return Fixed(self.start).free_slots(slots, slots_per_node)

    def planner(self) -> Planner:
        """Return that of the smallest size."""
        return Fixed(self.start).planner()
