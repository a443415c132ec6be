"""The final phase before a deadline: nothing new starts, the best trials get all devices and train to their end.

Before it a study explores as if it had no end, one trial on the devices of a new one, which is the most efficient use.
The phase begins at the last moment at which all that go on can still be complete, on so many more devices each that the
phase takes no more than a share of the whole time: the less time there is, the fewer trials go on and the more devices
each has. HyperSched (Liaw et al., SoCC 2019) decides likewise when to stop exploring; here the moment
follows from measured epochs, speed-ups and restarts, and those that go on are chosen at once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from trainwright.schedule.allocator.device_allocator import DeviceAllocator, RunningTrial
from trainwright.schedule.policies.allocation_policy import Planner
from trainwright.schedule.policies.resizing import use_faster_nodes

__all__ = ["FinalPhase"]

_SPARE = 3.0
"""So many times the trials go on of which one is expected to pass all rungs."""
_SHARE = 2 / 3
"""The part of the whole time that the phase takes at most, if devices allow it."""


@dataclass
class FinalPhase:
    """A policy's planner until the final phase begins; from then on its own. Times are the allocator's."""

    inner: Planner
    say: Callable[[str], None] | None = None
    """Hears, as a sentence, that the phase begins."""
    size: int = 0
    """The devices of each trial that goes on; 0 before the phase."""
    places: int = 0
    """How many go on at once."""
    finalists: set[int] = field(default_factory=set)
    _whole_seconds: float = 0.0  # from the first plan to the deadline

    def plan(self, allocator: DeviceAllocator) -> None:
        """Plan as the policy does, until it is time to train the best to their end."""
        self._whole_seconds = self._whole_seconds or allocator.seconds_left()
        if not self.size:
            self._begin_if_due(allocator)
        if not self.size:
            self.inner.plan(allocator)
            return
        allocator.final = True
        changed = allocator.changed
        if changed is not None and changed.is_settled and changed.trial not in self.finalists:
            allocator.preempt(changed, allocator.policy.start)
        self._fill_places(allocator)
        if changed is not None and changed.is_settled and changed.trial in self.finalists:
            self._grow(allocator, changed)
        if allocator.policy.resizes:
            use_faster_nodes(allocator)
        # Devices that came free while finalists train: those look in at their next checkpoint.
        if allocator.policy.resizes and allocator.free:
            for running in self._running_finalists(allocator):
                if running.is_settled and self._wanted_size(allocator, running) > running.size:
                    allocator.replan_at_checkpoint(running)

    def _begin_if_due(self, allocator: DeviceAllocator) -> None:
        """Begin the phase if those that go on could not be complete any more if it began later."""
        if allocator.estimates.epoch_seconds() is None or not allocator.rungs or not allocator.running:
            return
        policy, sizes = allocator.policy, _sizes(allocator)
        best_first = sorted(allocator.running.values(), key=lambda each: (-each.rungs, each.loss, each.trial))
        # The more devices each has, the fewer go on: the last of those begins from the rung that it has passed.
        lasts = [best_first[: max(1, allocator.slots // size)][-1] for size in sizes]
        needed = [
            self._needed_seconds(allocator, last.rung_epoch, size, allocator.block_speed(last.block))
            for last, size in zip(lasts, sizes, strict=True)
        ]
        # The fewest devices a trial with which the phase is no longer than its share of the time, and no more trials go
        # on than are needed for one that would pass all rungs.
        enough = (
            _SPARE / next(iter(reversed(allocator.survival(best_first[0]))), 1.0)
            if len(allocator.rungs) > 1
            else math.inf
        )
        short = [
            seconds <= _SHARE * self._whole_seconds and allocator.slots // size <= enough
            for seconds, size in zip(needed, sizes, strict=True)
        ]
        choice = short.index(True) if any(short) else len(sizes) - 1
        left = allocator.seconds_left()
        allocator.final_at = allocator.at + left - needed[choice]
        if left > needed[choice]:
            allocator.plan_again_at(allocator.final_at)
            return
        self.size = sizes[choice]
        self.places = max(1, allocator.slots // self.size)
        self.finalists = {running.trial for running in best_first[: self.places]}
        if self.say is not None:
            trials, devices = (
                f"{n} {word}{'s' * (n != 1)}" for n, word in ((self.places, "trial"), (self.size, "device"))
            )
            self.say(
                f"the deadline is in {left:.3g} s: from now on up to {trials} on {devices} each train to their end, in "
                f"about {needed[choice]:.3g} s, and nothing new starts"
            )
        for running in best_first[self.places :]:
            if running.is_settled:
                allocator.preempt(running, policy.start)

    def _needed_seconds(self, allocator: DeviceAllocator, epoch: int, size: int, node: float = 1.0) -> float:
        """Return the seconds from `epoch` to the end on `size` devices, the epoch in work and a restart included."""
        estimates = allocator.estimates
        base = (estimates.epoch_seconds() or 0.0) / node
        speed = estimates.speedup(size / allocator.policy.start)
        return (allocator.rungs[-1] - epoch) * base / speed + base + estimates.restart(size)

    def _fill_places(self, allocator: DeviceAllocator) -> None:
        """Let those that rest at rungs go on in free places, as long as they can end; then interrupted ones."""
        last_rung = allocator.rungs[-2] if len(allocator.rungs) > 1 else 0
        if allocator.seconds_left() >= self._needed_seconds(allocator, last_rung, self.size):
            while len(self._running_finalists(allocator)) < self.places:
                before = set(allocator.running)
                if not allocator.start_next(new=False):
                    break
                self.finalists |= set(allocator.running) - before
        # Nobody else has use for the devices: better than nothing.
        if not allocator.running:
            for trial, _ in sorted(allocator.preempted.items(), key=lambda item: (-item[1].rungs, item[1].loss)):
                if allocator.restart(trial, allocator.policy.start):
                    self.finalists.add(trial)

    def _running_finalists(self, allocator: DeviceAllocator) -> list[RunningTrial]:
        return [allocator.running[trial] for trial in sorted(self.finalists) if trial in allocator.running]

    def _wanted_size(self, allocator: DeviceAllocator, running: RunningTrial) -> int:
        """Return the devices that a finalist should have: its share of all, if the growth is worth its restart."""
        share = max(self.size, allocator.slots // max(1, len(self._running_finalists(allocator))))
        size = max((each for each in _sizes(allocator) if each <= share), default=running.size)
        estimates, start = allocator.estimates, allocator.policy.start
        work = (allocator.rungs[-1] - running.epoch) * (running.start_epoch_seconds or estimates.epoch_seconds() or 0.0)
        work /= allocator.block_speed(running.block)
        now, then = (work / estimates.speedup(each / start) for each in (running.size, max(size, running.size)))
        return size if now > then + estimates.restart(size) and math.isfinite(now) else running.size

    def _grow(self, allocator: DeviceAllocator, running: RunningTrial) -> None:
        """Let a finalist at a checkpoint take its devices, or half of them where there is no such block."""
        size = self._wanted_size(allocator, running) if allocator.policy.resizes else 0
        while size > running.size and not allocator.resize(running, size):
            size //= 2


def _sizes(allocator: DeviceAllocator) -> list[int]:
    """Return the sizes that the policy may give a trial, ascending."""
    policy = allocator.policy
    if not policy.resizes:
        return [policy.start]
    most = getattr(policy, "cap", None) or allocator.slots
    return [size for size in allocator.sizes() if policy.start <= size <= most] or [policy.start]
