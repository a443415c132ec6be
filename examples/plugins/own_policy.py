"""An allocation policy of your own: a trial that has passed some rungs moves once to a larger block."""

from dataclasses import dataclass

import trainwright as tw
from trainwright.errors import ScheduleError
from trainwright.schedule import BuddyAllocator, DeviceAllocator, FreeSlots, PromotionRule

__all__ = ["Upgrade"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """Start on `start` devices; after `rungs` rungs go on with `size`, as soon as they are free. O(trials) an event."""

    start: int = 1
    size: int = 2
    rungs: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.start < self.size:
            raise ScheduleError(f"Upgrade.size: got {self.size!r}; allowed: a number above start={self.start}")

    @property
    def resizes(self) -> bool:
        """It does."""
        return True

    def check(self, slots: int, slots_per_node: int, rule: PromotionRule) -> None:  # noqa: ARG002
        """Refuse an engine that is too small for a new trial."""
        if self.start > slots:
            raise ScheduleError(f"Upgrade.start: got {self.start}, the engine has {slots} slots; allowed: up to these")

    def free_slots(self, slots: int, slots_per_node: int) -> FreeSlots:
        """Return nodes, in which blocks of any size can be found."""
        return BuddyAllocator(slots, slots_per_node)

    def planner(self) -> "Upgrade":
        """Return itself: all its state is in the allocator."""
        return self

    def plan(self, allocator: DeviceAllocator) -> None:
        """Move the best of those that have earned it, then start new work on what is left."""
        earned = [
            running for running in allocator.running.values() if running.is_settled and running.rungs >= self.rungs
        ]
        for running in sorted(earned, key=lambda running: (running.loss, running.trial)):
            if running.size < self.size <= allocator.free:
                allocator.resize(running, self.size)
        while allocator.free >= self.start and allocator.start_next():
            pass


if __name__ == "__main__":
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), objectives="min loss", seed=0)
    rule = tw.ASHA(max_epochs=27)
    schedulers = {"fixed": tw.Scheduler(rule, tw.Fixed(1)), "upgrade": tw.Scheduler(rule, Upgrade(size=4))}
    found = study.simulate(schedulers, engine=tw.Simulated(cluster=tw.Cluster(2, 8)), trials=64, seeds=5)
    for name, forecast in found.items():
        print(f"{name}: {forecast.makespan_seconds.mean / 60:.1f} minutes")
