"""The final phase before a deadline: starts no trial that could not be complete, and reassigns devices to the best.

Before it a study explores as if it had no end, one trial on the devices of a new one, which is the most efficient use.
A trial's way to its end is planned as halving narrows the field: from each rung on it has so many times the devices of
the rung before as fewer trials are left. Its share is the fewest devices until its next rung with which it is complete
by the deadline on that way (the minimum satisfactory share of ElasticFlow, Gu et al., ASPLOS 2023). The best get their
shares first, if need be from the worst, and at no time are more devices moved than that: meanwhile the rule goes on to
compare, which is worth more than an early choice. HyperSched (Liaw et al., SoCC 2019) decides likewise when to stop
exploring; here the moment follows from measured epochs, speed-ups and restarts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from trainwright.schedule.allocator.device_allocator import DeviceAllocator, RunningTrial
from trainwright.schedule.policies.allocation_policy import Planner
from trainwright.schedule.policies.resizing import use_faster_nodes

__all__ = ["FinalPhase"]

_WAITS = 2
"""Epochs until a trial has grown: its own, and that of the trial whose devices it gets."""
_MARGIN = 1.02
"""Ends are thought of as a fiftieth later than expected: expectations err."""


@dataclass
class FinalPhase:
    """A policy's planner until the final phase begins; from then on its own. Times are the allocator's."""

    inner: Planner
    say: Callable[[str], None] | None = None
    """Hears, as a sentence, that the phase begins."""
    sizes: tuple[int, ...] = ()
    """The devices of a trial from each rung on, 0 being the start."""
    _whole_seconds: float = 0.0  # from the first plan to the deadline

    def plan(self, allocator: DeviceAllocator) -> None:
        """Plan as the policy does, as long as a new trial could be complete; then for those that run and rest."""
        left, changed = allocator.seconds_left(), allocator.changed
        self._whole_seconds = self._whole_seconds or left
        if allocator.estimates.epoch_seconds() is None or not allocator.rungs:
            self.inner.plan(allocator)
            return
        way = self._choose_sizes(allocator)
        allocator.final_at = allocator.at + left - way
        # A faster epoch than was thought, and new trials start again.
        allocator.final = way > left
        if allocator.final:
            self._announce(left)
        elif allocator.running:
            allocator.plan_again_at(allocator.final_at)
        shares = self._find_shares(allocator)
        lacks = self._claim_devices(allocator, shares)
        if changed is not None and changed.is_settled and changed.trial in shares:
            _grow_to(allocator, changed, shares[changed.trial])
        # What is free is kept for those whose share it is.
        if lacks:
            return
        if not allocator.final:
            self.inner.plan(allocator)
            if allocator.running:
                return
            # Nothing is left to compare: what rests goes on now, and without such trials the run ends.
            allocator.final = True
        self._start_paused(allocator)
        if allocator.running:
            self._announce(left)
        if allocator.policy.resizes:
            self._use_free_devices(allocator)

    def _announce(self, left: float) -> None:
        """Say once that the phase begins."""
        if self.say is not None:
            most = self.sizes[-1]
            self.say(
                f"the deadline is in {left:.3g} s: nothing new starts, and from now on the best train to their end, "
                f"each on up to {most} device{'s' * (most != 1)}"
            )
        self.say = None

    def _choose_sizes(self, allocator: DeviceAllocator) -> float:
        """Choose the devices of a trial from each rung on, and return how long a new trial takes to its end.

        As halving gives each stretch between rungs the same part of all devices, the last one has so many times those
        of a new trial as there are stretches; more where that left less of the whole time to explore than such a part.
        """
        start, stages, options = allocator.policy.start, len(allocator.rungs), _sizes(allocator)
        chances = (1.0, *allocator.survival(RunningTrial(trial=0, block=())))
        chances += (chances[-1],) * (stages - len(chances))
        way = math.inf
        for last in [size for size in options if size >= stages * start] or options[-1:]:
            # The fewer pass all later rungs, the more have to share the devices.
            parts = [last * chances[stages - 1] / max(chance, 1e-9) for chance in chances[:stages]]
            self.sizes = tuple(max((size for size in options if size <= part), default=start) for part in parts)
            way = self._seconds_to_end(allocator, RunningTrial(trial=0, block=tuple(range(start))), self.sizes[0])
            if way <= stages / (stages + 1) * self._whole_seconds:
                break
        return way

    def _seconds_to_end(self, allocator: DeviceAllocator, running: RunningTrial, size: int) -> float:
        """Return the seconds to a trial's end: to its next rung on `size` devices, then on those of the later rungs."""
        estimates, start, held = allocator.estimates, allocator.policy.start, len(running.block)
        alone = running.start_epoch_seconds or estimates.epoch_seconds() or 0.0
        alone /= allocator.block_speed(running.block)
        if not alone:
            return 0.0
        # Where it is by now, between two reports; it stays as it is until the end of its epoch.
        epoch, since = running.measured_from or (running.epoch, allocator.at)
        pace = alone / estimates.speedup(held / start)
        done = max(0.0, allocator.at - since) / pace
        before = min(epoch + math.ceil(done), allocator.rungs[min(running.rungs, len(allocator.rungs) - 1)])
        total = max(0.0, since - allocator.at) + max(0.0, before - epoch - done) * pace
        for stage in range(running.rungs, len(allocator.rungs)):
            wanted = size if stage == running.rungs else max(self.sizes[stage], held)
            if wanted != held:
                total += estimates.restart(wanted) + _WAITS * alone / estimates.speedup(held / start)
            total += (allocator.rungs[stage] - before) * alone / estimates.speedup(wanted / start)
            before, held = allocator.rungs[stage], wanted
        return _MARGIN * total

    def _find_shares(self, allocator: DeviceAllocator) -> dict[int, int]:
        """Return the share of each trial that can be complete in time, the best first, as far as there are devices."""
        left, room, shares = allocator.seconds_left(), allocator.slots, dict[int, int]()
        for running in _best_first(allocator):
            # One that has diverged has no claim.
            if running.rungs and not math.isfinite(running.loss):
                continue
            fits = (size for size in (running.size, *_sizes(allocator)) if running.size <= size <= room)
            share = next((size for size in fits if self._seconds_to_end(allocator, running, size) <= left), None)
            if share is not None:
                shares[running.trial] = share
                room -= share
        return shares

    def _claim_devices(self, allocator: DeviceAllocator, shares: dict[int, int]) -> bool:
        """Have those look in that lack devices, and the worst make room; return whether more lack than are free."""
        lacking = 0
        for trial, share in shares.items():
            running = allocator.running[trial]
            if running.is_settled and share > running.size:
                lacking += share - running.size
                if running is not allocator.changed:
                    allocator.replan_at_checkpoint(running)
        coming = allocator.free + sum(each.size for each in allocator.running.values() if each.is_preempted)
        for running in reversed(_best_first(allocator)):
            if coming >= lacking:
                break
            if running.is_settled and running.trial not in shares:
                allocator.preempt(running, allocator.policy.start)
                coming += running.size
        return lacking > allocator.free

    def _start_paused(self, allocator: DeviceAllocator) -> None:
        """Let those that rest at rungs go on where devices are free, then interrupted ones, if they can end in time."""
        left, start, last = allocator.seconds_left(), allocator.policy.start, len(allocator.rungs) - 1
        resting = RunningTrial(trial=0, block=tuple(range(start)), rungs=last)
        resting.epoch = allocator.rungs[last - 1] if last else 0
        soonest = min(self._seconds_to_end(allocator, resting, size) for size in _sizes(allocator))
        while soonest + allocator.estimates.restart(start) <= left and allocator.start_next(new=False):
            pass
        for trial, running in sorted(allocator.preempted.items(), key=lambda item: (-item[1].rungs, item[1].rung_loss)):
            running.measured_from = None
            fits = (size for size in _sizes(allocator) if size <= allocator.free)
            size = next((size for size in fits if self._seconds_to_end(allocator, running, size) <= left), None)
            # Where nobody else has use for the devices: better than nothing.
            if size is not None or not allocator.running:
                allocator.restart(trial, size or start)

    def _use_free_devices(self, allocator: DeviceAllocator) -> None:
        """Let the best grow on what is free beyond all shares, each at its next checkpoint."""
        changed = allocator.changed
        if changed is not None and changed.is_settled:
            _grow_to(allocator, changed, self._doubled(allocator, changed))
        use_faster_nodes(allocator)
        room = allocator.free
        for running in _best_first(allocator):
            more = self._doubled(allocator, running) - running.size
            if running.is_settled and 0 < more <= room:
                allocator.replan_at_checkpoint(running)
                room -= more

    def _doubled(self, allocator: DeviceAllocator, running: RunningTrial) -> int:
        """Return twice a trial's devices, if there are such blocks and that is worth the restart; else what it has."""
        size = max((each for each in _sizes(allocator) if each <= 2 * running.size), default=running.size)
        estimates, start = allocator.estimates, allocator.policy.start
        work = (allocator.rungs[-1] - running.epoch) * (running.start_epoch_seconds or estimates.epoch_seconds() or 0.0)
        work /= allocator.block_speed(running.block)
        now, then = (work / estimates.speedup(each / start) for each in (running.size, size))
        return size if size > running.size and now > then + estimates.restart(size) else running.size


def _best_first(allocator: DeviceAllocator) -> list[RunningTrial]:
    return sorted(allocator.running.values(), key=lambda each: (-each.rungs, each.rung_loss, each.trial))


def _grow_to(allocator: DeviceAllocator, running: RunningTrial, size: int) -> None:
    """Let a trial at a checkpoint take so many devices, or half of them where there is no such block."""
    while size > running.size and not allocator.resize(running, size):
        size //= 2


def _sizes(allocator: DeviceAllocator) -> list[int]:
    """Return the sizes that the policy may give a trial, ascending."""
    policy = allocator.policy
    if not policy.resizes:
        return [policy.start]
    most = getattr(policy, "cap", None) or allocator.slots
    return [size for size in allocator.sizes() if policy.start <= size <= most] or [policy.start]
