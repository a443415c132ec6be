"""Doubling: doubles a trial's devices at each rung that it passes (RASDA), if they are free and worth the restart."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from trainwright.errors import ScheduleError
from trainwright.schedule.allocator.device_allocator import DeviceAllocator, RunningTrial
from trainwright.schedule.policies.resizing import MARGIN, Resizing, shrink_back, use_faster_nodes
from trainwright.schedule.rules.promotion_rule import PromotionRule
from trainwright.validators import integer, number, one_of, optional

__all__ = ["Doubling", "DoublingAsPublished"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubling(Resizing):
    """Let a trial that passes the k-th rung grow to start * factor^(k+1) devices (after RASDA, arXiv 2412.02729).

    New trials come first: while one waits that could be complete in time, nobody grows. Then freed devices are
    collected for those that have earned them, in the order of rungs from the highest, then of losses; a trial trains on
    meanwhile and moves at a checkpoint. It wants no more than `cap`, than any block there can be, and than the last
    doubling that makes it a tenth faster (as measured so far), and nothing if a restart takes longer than the growth
    saves. After `wait_seconds` (None: as long as the growth would save) it takes the largest block there is, or stays.

    `mode="block"` is the published allocation: a trial that reports at just the epoch of a rung gives its devices back
    and waits until all that it has earned are free at once, however many and whatever they save. See
    `DoublingAsPublished`.
    """

    factor: Annotated[int, integer(minimum=2)] = 2
    wait_seconds: Annotated[float | None, optional(number(above=0), words="None (what growth saves)")] = None
    mode: Annotated[Literal["continue", "block"], one_of("continue", "block")] = "continue"

    def check_together(self) -> None:
        """Refuse a cap below the start, and limits of the published mode, which has none."""
        Resizing.check_together(self)
        if self.mode == "block" and (self.cap, self.wait_seconds) != (None, None):
            raise ScheduleError(
                "Doubling.mode: got 'block' with cap or wait_seconds; allowed: either, with mode='continue'"
            )

    def check(self, slots: int, slots_per_node: int, rule: PromotionRule) -> str | None:
        """Refuse an engine that is too small for a new trial; as published, warn that one could wait for ever."""
        Resizing.check(self, slots, slots_per_node, rule)
        # What a trial that passes all rungs has earned; as published it waits for just that.
        wanted = self.start * self.factor ** len(getattr(rule, "rungs", ()))
        if self.mode == "continue" or wanted <= slots:
            return None
        return (
            f"DoublingAsPublished: a trial that passes all rungs wants {wanted} devices, the engine has {slots}: it "
            "would wait for ever (SchedulerStalled); use Doubling, fewer rungs, or a larger engine"
        )

    def planner(self) -> "_Planner":
        """Return a planner."""
        return _Planner(self)


def DoublingAsPublished(*, start: int = 1, factor: int = 2) -> Doubling:  # noqa: N802 -- it stands where policies stand
    """Return `Doubling` as RASDA was published, for comparison: no cap, no fallback, no test whether growth pays."""
    return Doubling(start=start, factor=factor, mode="block")


@dataclass(slots=True)
class _GrowthRequest:
    running: RunningTrial
    size: int
    until: float = math.inf  # set when it comes first, and no new trial before it


@dataclass
class _Planner:
    policy: Doubling
    wishes: list[_GrowthRequest] = field(default_factory=list)

    def plan(self, allocator: DeviceAllocator) -> None:
        running = allocator.changed
        # Only a report at just the epoch of a rung earns devices, as published.
        if running is not None and running.is_settled and running.rungs and running.epoch == running.rung_epoch:
            self._request_growth(allocator, running)
        if self.policy.mode == "block":
            allocator.start_waiting(new=True)
            self._start_preempted(allocator)
            return
        if running is not None:
            shrink_back(allocator, running)
        allocator.start_waiting(new=allocator.new_trial_waits())
        if allocator.new_trial_waits():
            return
        use_faster_nodes(allocator)
        self._grant_growth(allocator)
        if self.wishes:
            allocator.plan_again_at(self.wishes[0].until)
        else:
            # Too late to be complete, but nobody else has use for the devices.
            allocator.start_waiting(new=True)

    def _request_growth(self, allocator: DeviceAllocator, running: RunningTrial) -> None:
        """Note what the trial's last rung has earned it, if it has not got it."""
        # A later rung replaces what an earlier one has earned.
        self.wishes = [wish for wish in self.wishes if wish.running.trial != running.trial]
        size = self.policy.start * self.policy.factor**running.rungs
        # A trial wants the size that its rungs have earned, and is served in the order of rungs, then loss.
        if size <= len(running.block):
            return
        self.wishes.append(_GrowthRequest(running, size))
        if self.policy.mode == "block":
            allocator.preempt(running, size)
        else:
            self.wishes.sort(key=lambda wish: (-wish.running.rungs, wish.running.loss, wish.running.trial))

    def _grant_growth(self, allocator: DeviceAllocator) -> None:
        """Serve the wishes in order, as far as devices are free."""
        while self.wishes:
            wish = self.wishes[0]
            size = self._worthwhile_size(allocator, wish) if wish.running.is_settled else 0
            if size:
                if wish.until == math.inf:
                    now, then = self._remaining_seconds(allocator, wish.running, size)
                    wish.until = allocator.at + (self.policy.wait_seconds or now - then)
                # Wait for the full size until waiting costs more than growth saves; then take what there is.
                late = allocator.at >= wish.until
                have = len(wish.running.block)
                smaller = [each for each in allocator.sizes() if late and have < each < size]
                if not any(allocator.resize(wish.running, each) for each in (size, *reversed(smaller))) and not late:
                    return
            del self.wishes[0]

    def _worthwhile_size(self, allocator: DeviceAllocator, wish: _GrowthRequest) -> int:
        """Return the size up to which growth pays, 0 if none does."""
        running, found = wish.running, 0
        if allocator.running.get(running.trial) is not running:
            return 0
        before = len(running.block)
        # What is not measured is tried one step at a time: a belief in its speed can be far off.
        step = self.policy.factor * max(before, int(self.policy.start * allocator.estimates.known))
        most = min(self.policy.cap or allocator.slots, allocator.slots, wish.size, step)
        # Sizes up to the knee: each doubling must be faster by the margin.
        for size in allocator.sizes():
            if before < size <= most:
                if self._relative_speed(allocator, before, size) < MARGIN ** math.log2(size / before):
                    # The knee of the speed.
                    break
                before = found = size
        if not found:
            return 0
        now, then = self._remaining_seconds(allocator, running, found)
        return found if now > MARGIN * then else 0

    def _relative_speed(self, allocator: DeviceAllocator, before: int, size: int) -> float:
        speed = allocator.estimates.speedup
        return speed(size / self.policy.start) / speed(before / self.policy.start)

    def _remaining_seconds(self, allocator: DeviceAllocator, running: RunningTrial, size: int) -> tuple[float, float]:
        """Return the seconds that a trial expects still to take as it is, and on so many devices, restart included."""
        have = len(running.block)
        base = allocator.estimates.epoch_seconds() or 0.0
        # A trial whose epochs were not measured on these devices is as fast as the estimate says.
        now = allocator.remaining_epochs(running) * (
            running.epoch_seconds
            or base / allocator.estimates.speedup(have / self.policy.start) / allocator.block_speed(running.block)
        )
        return now, now / self._relative_speed(allocator, have, size) + allocator.estimates.restart(size)

    def _start_preempted(self, allocator: DeviceAllocator) -> None:
        """Let those go on for whom enough devices are free at once, first come, first served."""
        if allocator.free < self.policy.start:
            return
        left: list[_GrowthRequest] = []
        for wish in self.wishes:
            waits = wish.running.is_preempted or wish.running.trial in allocator.preempted
            if waits and not (
                wish.running.trial in allocator.preempted and allocator.restart(wish.running.trial, wish.size)
            ):
                left.append(wish)
        self.wishes = left
