"""A policy for tests of what moves trials: who passes a rung gets twice its devices, whatever that is worth."""

from dataclasses import dataclass, field

from trainwright.schedule import DeviceAllocator
from trainwright.schedule.allocator.device_allocator import RunningTrial
from trainwright.schedule.policies.resizing import Resizing


@dataclass(frozen=True, kw_only=True)
class Eager(Resizing):
    """New trials first, then who has passed a rung, in turn."""

    start: int = 1

    def planner(self):
        return EagerPlanner()


@dataclass
class EagerPlanner:
    wishes: list[tuple[RunningTrial, int]] = field(default_factory=list)

    def plan(self, allocator: DeviceAllocator) -> None:
        while allocator.free >= allocator.policy.start and allocator.start_next():
            pass
        running = allocator.changed
        if running is not None and running.is_settled and running.rungs and running.epoch == running.rung_epoch:
            self.wishes = [wish for wish in self.wishes if wish[0] is not running]
            self.wishes.append((running, 2 * len(running.block)))
        self.wishes = [
            (running, size)
            for running, size in self.wishes
            if allocator.running.get(running.trial) is running and not allocator.resize(running, size)
        ]
