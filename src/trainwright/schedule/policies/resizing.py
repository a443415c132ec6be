"""What the policies that resize trials share: moves to faster nodes, shrinks back, and refuses impossible sizes."""

from dataclasses import dataclass
from typing import Annotated

from trainwright.errors import ScheduleError
from trainwright.schedule.allocator.device_allocator import DeviceAllocator, RunningTrial
from trainwright.schedule.allocator.free_slots import BuddyAllocator, FreeSlots
from trainwright.schedule.rules.promotion_rule import PromotionRule
from trainwright.settings import Settings
from trainwright.validators import integer, optional

__all__ = ["MARGIN", "Resizing", "shrink_back", "use_faster_nodes"]

MARGIN = 1.1
"""A change must be worth it by a tenth: expectations err."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resizing(Settings, error=ScheduleError):
    """A policy that starts trials on `start` devices, and lets none grow beyond `cap`."""

    start: Annotated[int, integer(minimum=1, of="devices")] = 1
    cap: Annotated[int | None, optional(integer(minimum=1))] = None

    def check_together(self) -> None:
        """Refuse a cap below the start."""
        if self.cap is not None and self.cap < self.start:
            raise ScheduleError(
                f"{type(self).__name__}.cap: got {self.cap!r}; allowed: a whole number >= start={self.start}, or None "
                "for no cap"
            )

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


def shrink_back(allocator: DeviceAllocator, running: RunningTrial) -> bool:
    """Let a trial that growth has made slower go back, to the size on which it expects to end first."""
    if not (running.is_settled and running.start_epoch_seconds and running.epoch_seconds):
        return False
    work, start = allocator.remaining_epochs(running), allocator.policy.start
    # Measured epochs say that growth did not pay on these devices, whatever was believed before.
    smaller = [size for size in allocator.sizes() if start <= size < len(running.block)]
    estimates, alone = allocator.estimates, running.start_epoch_seconds / allocator.block_speed(running.block)
    # The expected end on each smaller size, restart included.
    ends = [(work * alone / estimates.speedup(size / start) + estimates.restart(size), size) for size in smaller]
    if not ends or work * running.epoch_seconds <= MARGIN * min(ends)[0]:
        return False
    return allocator.resize(running, min(ends)[1])


def use_faster_nodes(allocator: DeviceAllocator) -> None:
    """Let the trial at a checkpoint move to free devices of faster nodes; ask those to look in that would gain most."""
    if not allocator.speeds or not allocator.free:
        return
    changed = allocator.changed
    if changed is not None and changed.is_settled:
        allocator.move_to_faster(changed)
    fastest = allocator.fastest_free(allocator.policy.start)
    slow = [
        running
        for running in allocator.running.values()
        if running.is_settled and allocator.block_speed(running.block) < fastest
    ]
    # Those with most to do first, as many as the free devices can hold.
    slow.sort(key=lambda each: -allocator.remaining_epochs(each) * (each.start_epoch_seconds or 1.0))
    room = allocator.free
    for running in slow:
        room -= running.size
        if room < 0:
            break
        allocator.replan_at_checkpoint(running)
