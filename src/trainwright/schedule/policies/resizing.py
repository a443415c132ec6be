"""What the policies that resize share: nodes to take devices from, and the refusal of sizes that are none."""

from trainwright.errors import ScheduleError
from trainwright.schedule.allocator.device_allocator import DeviceAllocator, RunningTrial
from trainwright.schedule.allocator.free_slots import BuddyAllocator, FreeSlots
from trainwright.schedule.rules.promotion_rule import PromotionRule
from trainwright.settings import Settings

__all__ = ["MARGIN", "Resizing", "check_cap", "retreat"]

MARGIN = 1.1
"""A change must be worth it by a tenth: expectations err."""


class Resizing(Settings, error=ScheduleError):
    """Subclasses have the field `start`, the devices of a new trial."""

    __slots__ = ()

    start: int

    @property
    def resizes(self) -> bool:
        """It does."""
        return True

    def check(self, slots: int, slots_per_node: int, rule: PromotionRule) -> str | None:  # noqa: ARG002 -- the protocol's
        """Refuse an engine that is too small for a new trial."""
        if self.start > slots:
            raise ScheduleError(
                f"{type(self).__name__}.start: got {self.start}, the engine has {slots} slots; allowed: 1 to {slots}, "
                "or a larger engine"
            )
        return None

    def free_slots(self, slots: int, slots_per_node: int) -> FreeSlots:
        """Return nodes with buddies inside."""
        return BuddyAllocator(slots, slots_per_node)


def check_cap(policy: str, start: int, cap: int | None) -> None:
    """Refuse a cap below the start."""
    if cap is not None and cap < start:
        raise ScheduleError(f"{policy}.cap: got {cap!r}; allowed: a whole number >= start={start}, or None for no cap")


def retreat(allocator: DeviceAllocator, running: RunningTrial) -> bool:
    """Let a trial that growth has made slower go back, to the size on which it expects to end first."""
    if not (running.is_settled and running.start_epoch_seconds and running.epoch_seconds):
        return False
    work, start = allocator.remaining_epochs(running), allocator.policy.start
    # Measured epochs say that growth did not pay on these devices, whatever was believed before.
    smaller = [size for size in allocator.sizes() if start <= size < len(running.block)]
    # The expected end on each smaller size, restart included.
    ends = [
        (
            work * running.start_epoch_seconds / allocator.estimates.speedup(size / start)
            + allocator.estimates.restart(size),
            size,
        )
        for size in smaller
    ]
    if not ends or work * running.epoch_seconds <= MARGIN * min(ends)[0]:
        return False
    return allocator.resize(running, min(ends)[1])
