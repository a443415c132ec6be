"""The device allocator: decides which trial runs on which devices, resizes and preempts trials, and queues the others.

The driver of a study and the simulator report events to the same allocator, and carry out the actions that it returns;
the policy's planner decides, by the allocator's methods.
"""

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from trainwright.cluster.device import NodeShape
from trainwright.schedule.allocator.estimates import Estimates, Goodput, StepShape
from trainwright.schedule.allocator.free_slots import FreeSlots
from trainwright.schedule.allocator.mixed_nodes import arrange_slots, slot_speeds
from trainwright.schedule.policies.allocation_policy import Action, AllocationPolicy, Block, PendingTrial, Planner

__all__ = ["DeviceAllocator", "RunningTrial", "TrialSource"]

_WORTH = 1.1
"""A move must be worth it by a tenth: expectations err."""


class TrialSource(Protocol):
    """The trials that wait for devices."""

    def next_trial(self, *, new: bool = True) -> PendingTrial | None:
        """Return the next pending trial (interrupted, then promoted, then new) or None; each is returned once.

        Without `new` no new trial is started.
        """

    def waits(self) -> bool:
        """Whether new trials could be started."""


@dataclass(slots=True)
class RunningTrial:
    """A running trial: its devices, its progress, and the block it is to move to."""

    trial: int
    block: Block
    epoch: int = 0
    rungs: int = 0  # that it has passed
    rung_epoch: int = 0  # the last of them
    loss: float = float("inf")
    rung_loss: float = float("inf")  # at the last rung: trials are compared where they have come as far
    epoch_seconds: float | None = None  # on these devices
    start_epoch_seconds: float | None = None  # on the devices of a new trial, of speed 1
    measured_from: tuple[int, float] | None = None  # an epoch and a time, from which to measure
    replans: bool = False  # its next checkpoint is awaited
    resized_at: float = float("-inf")  # when it last changed its devices
    target: Block | None = None
    goodput: Goodput | None = None  # the model of its step times, if it chooses its batch by it
    noise: float = 0.0  # its gradient noise scale
    step_unit: float | None = None  # the seconds of its first step
    is_preempted: bool = False
    wanted_size: int = 0  # devices that it waits for, preempted

    @property
    def size(self) -> int:
        """The devices that it has, or will have."""
        return len(self.target if self.target is not None else self.block)

    @property
    def is_settled(self) -> bool:
        """Whether no change of its devices is under way."""
        return self.target is None and not self.is_preempted


@dataclass
class DeviceAllocator:
    """Records the running trials and calls the policy's planner after every event. Times are seconds of one clock."""

    policy: AllocationPolicy
    source: TrialSource
    free_slots: FreeSlots
    slots: int
    rungs: tuple[int, ...]  # epochs at which trials are compared, and the last epoch
    survival: Callable[[RunningTrial], tuple[float, ...]]
    seconds_left: Callable[[], float] = field(default_factory=lambda: lambda: math.inf)  # until the time budget is used
    speeds: Sequence[float] = ()  # of each slot's device, relative to one another; () where all are alike
    estimates: Estimates = field(default_factory=Estimates)
    running: dict[int, RunningTrial] = field(default_factory=dict)
    preempted: dict[int, RunningTrial] = field(default_factory=dict)
    at: float = 0.0
    touched: set[int] = field(
        default_factory=set
    )  # trials of which something changed; emptied by the planner that read it
    changed: RunningTrial | None = None  # whose report was the event: it is at a checkpoint
    wake_at: float | None = None
    planner: Planner | None = None
    """Its decisions; None: the policy's own."""
    final: bool = False
    """Whether the final phase before a deadline has begun: the best go on to the end, nothing new starts."""
    final_at: float = math.inf
    """When it is expected to begin."""

    @classmethod
    def on(cls, nodes: tuple[NodeShape, ...], policy: AllocationPolicy, source: TrialSource, **settings: Any) -> Self:
        """Return an allocator of these nodes' slots, which are numbered node by node."""
        free_slots, slots = arrange_slots(nodes, policy), sum(node.devices for node in nodes)
        return cls(policy, source, free_slots, slots=slots, speeds=slot_speeds(nodes), **settings)

    def __post_init__(self) -> None:
        self.estimates.start = self.policy.start
        self._planner = self.policy.planner() if self.planner is None else self.planner
        self._actions: list[Action] = []
        # Of trials that ran: the latest loss, and the seconds of an epoch, for those that are promoted.
        self._known: dict[int, tuple[float, float | None]] = {}

    @property
    def measures(self) -> bool:
        """Whether its planner needs to know how long epochs and restarts take."""
        return self.policy.resizes or self.planner is not None

    # Events, reported by the driver or the simulator.

    def note_report(self, trial: int, epoch: int, loss: float, at: float) -> None:
        """Note a report; `note_ended` follows if the trial does not continue."""
        self.at = at
        running = self.running[trial]
        # Seconds per epoch since the last report; together with those on the starting size they give a speed-up.
        if running.measured_from is not None and epoch > running.measured_from[0]:
            spent = max(0.0, at - running.measured_from[1])
            running.epoch_seconds = spent / (epoch - running.measured_from[0])
            # Only epochs on the starting size are comparable between trials; those on others give the trial's own
            # speed-up.
            # What they would take on devices of speed 1.
            seconds = running.epoch_seconds * self.block_speed(running.block)
            if len(running.block) == self.policy.start and seconds:  # an epoch of a table may take no time
                self.estimates.saw_epochs(seconds, epoch - running.measured_from[0])
                running.start_epoch_seconds = seconds
            elif running.start_epoch_seconds and seconds:
                self.estimates.saw_speedup(
                    len(running.block) / self.policy.start, running.start_epoch_seconds / seconds
                )
        running.measured_from = epoch, at
        running.epoch, running.loss, running.replans = epoch, loss, False
        if not running.rungs or self.rungs[min(running.rungs, len(self.rungs) - 1)] <= epoch:
            running.rung_loss = loss
        self.touched.add(trial)
        # A report may pass several rungs at once, as after a restart from a late checkpoint.
        while running.rungs < len(self.rungs) and self.rungs[running.rungs] <= epoch:
            running.rung_epoch = self.rungs[running.rungs]
            running.rungs += 1
        self.changed = running

    def note_goodput(self, trial: int, measured: Mapping[str, Any]) -> None:
        """Note the step times and the gradient noise that a trial has measured in its last epoch."""
        running = self.running[trial]
        running.goodput = self.estimates.goodput_of(*(measured[name] for name in ("reference", "limit", "largest")))
        shape = StepShape(*measured["shape"])
        running.step_unit = running.goodput.observe(shape, measured["step_seconds"], running.step_unit)
        running.noise = running.goodput.noise = measured["noise"] or 0.0

    def note_resized(self, trial: int, at: float) -> None:
        """Note that a trial has left its block for the one that was held for it."""
        running = self.running[trial]
        assert running.target is not None  # noqa: S101 -- nobody else moves trials
        # Slots that both blocks share stay taken.
        self.free_slots.give([slot for slot in running.block if slot not in set(running.target)])
        running.block, running.target = running.target, None
        running.resized_at, running.measured_from = at, None
        self.touched.add(trial)

    def note_preempted(self, trial: int) -> None:
        """Note that a trial has given its devices back, to be started again."""
        running = self.running.pop(trial)
        self.touched.add(trial)
        running.is_preempted = False
        self.free_slots.give(running.block)
        self.preempted[trial] = running

    def note_ended(self, trial: int) -> None:
        """Note that a trial runs no more: it has ended, or waits for a promotion."""
        self.preempted.pop(trial, None)
        running = self.running.pop(trial, None)
        if running is not None:
            self._known[trial] = running.loss, running.start_epoch_seconds
            self.touched.add(trial)
            if running is self.changed:
                self.changed = None
            self.free_slots.give({*running.block, *(running.target or ())})

    def plan(self, at: float) -> list[Action]:
        """Ask the planner what to do now."""
        self.at = at
        self.wake_at = None
        self._actions = []
        self._planner.plan(self)
        self.changed = None
        return self._actions

    # Questions and actions of planners.

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self.free_slots.free

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes that blocks can have, ascending."""
        return self.free_slots.sizes()

    def block_speed(self, block: Block) -> float:
        """Return the speed of a block's slowest device, for which the others wait."""
        return min((self.speeds[slot] for slot in block), default=1.0) if self.speeds else 1.0

    def fastest_free(self, size: int) -> float:
        """Return the speed of the fastest free block of so many devices, 0 if there is none."""
        block = self.free_slots.take(size)
        if block is None:
            return 0.0
        self.free_slots.give(block)
        return self.block_speed(block)

    def new_trial_waits(self) -> bool:
        """Whether a new trial waits that could be complete before the run ends, if it doubled its devices once."""
        if not self.source.waits():
            return False
        # Without a budget of time, or before an epoch was measured, a new trial always counts as one that waits; where
        # there is a deadline, the planner of its final phase says when none starts any more.
        left, base, start = self.seconds_left(), self.estimates.epoch_seconds(), self.policy.start
        if base is None or left == math.inf or not self.rungs or self.planner is not None:
            return True
        faster = self.estimates.speedup(2) if 2 * start <= self.slots else 1.0
        return self.estimates.restart(start) + self.rungs[-1] * base / max(1.0, faster) <= left

    def start_next(self, *, new: bool = True) -> bool:
        """Start the next pending trial on the devices of a new trial; return whether there was one."""
        # The block is taken first: a trial that is handed out by its source must be started.
        block = self.free_slots.take(self.policy.start)
        if block is None:
            return False
        pending = self.source.next_trial(new=new)
        if pending is None:
            self.free_slots.give(block)
            return False
        running = RunningTrial(trial=pending.trial, block=block, epoch=pending.epoch)
        running.loss, running.start_epoch_seconds = self._known.pop(pending.trial, (math.inf, None))
        running.rung_loss = running.loss
        # The first epoch after a restart is longer.
        running.measured_from = None if pending.epoch else (0, self.at)
        running.rungs = bisect(self.rungs, pending.epoch)
        running.rung_epoch = self.rungs[running.rungs - 1] if running.rungs else 0
        self._start_running(running)
        return True

    def start_waiting(self, *, new: bool, reserved: float = 0.0) -> None:
        """Start what waits, with or without new trials, on all free devices but so many."""
        while self.free - reserved >= self.policy.start and self.start_next(new=new):
            pass

    def restart(self, trial: int, size: int) -> bool:
        """Start a preempted trial on `size` devices; return whether they were free."""
        block = self.free_slots.take(size)
        if block is None:
            return False
        running = self.preempted.pop(trial)
        running.block, running.resized_at, running.measured_from = block, self.at, None
        self._start_running(running)
        return True

    def _start_running(self, running: RunningTrial) -> None:
        self.running[running.trial] = running
        self.touched.add(running.trial)
        self._actions.append(Action("start", running.trial, running.block))

    def resize(self, running: RunningTrial, size: int) -> bool:
        """Let a trial continue on `size` devices from its next checkpoint; return whether they were free.

        Nothing happens to a trial that no longer runs, of which a planner may not know yet.
        """
        if self.running.get(running.trial) is not running:
            return False
        block = (
            running.block[:size] if size < running.size else self.free_slots.grow(running.target or running.block, size)
        )
        if block is None:
            return False
        if self.speeds and not self._is_faster(running.target or running.block, block):
            # More devices of slower nodes do not pay.
            self.free_slots.give(set(block).difference(running.block, running.target or ()))
            return False
        self._set_target(running, block)
        return True

    def move_to_faster(self, running: RunningTrial) -> bool:
        """Let a trial continue on as many devices of faster nodes, if that is worth a restart; return whether it is."""
        block = self.free_slots.take(running.size)
        if block is None:
            return False
        size, seconds = running.size, running.start_epoch_seconds or self.estimates.epoch_seconds() or 0.0
        work = self.remaining_epochs(running) * seconds / self.estimates.speedup(size / self.policy.start)
        now, then = (work / self.block_speed(each) for each in (running.block, block))
        if now <= _WORTH * (then + self.estimates.restart(size)):
            self.free_slots.give(block)
            return False
        self._set_target(running, block)
        return True

    def _is_faster(self, block: Block, larger: Block) -> bool:
        """Whether a trial is faster on another block than on its own, or the other is the smaller."""
        own, other = (
            self.block_speed(each) * self.estimates.speedup(len(each) / self.policy.start) for each in (block, larger)
        )
        return len(larger) < len(block) or self.block_speed(larger) >= self.block_speed(block) or other > own

    def _set_target(self, running: RunningTrial, block: Block) -> None:
        # A second growth before the checkpoint replaces the first.
        if running.target is not None:
            self.free_slots.give(set(running.target).difference(block, running.block))
            self._actions = [
                action for action in self._actions if action != Action("resize", running.trial, running.target)
            ]
        running.target = block
        self.touched.add(running.trial)
        self._actions.append(Action("resize", running.trial, block))

    def preempt(self, running: RunningTrial, wanted: int) -> None:
        """Take a trial's devices at its next checkpoint, until `wanted` ones are free."""
        running.is_preempted, running.wanted_size = True, wanted
        self._actions.append(Action("preempt", running.trial))

    def replan_at_checkpoint(self, running: RunningTrial) -> None:
        """Have the planner called when a trial is at its next checkpoint."""
        if running.replans:
            return
        running.replans = True
        self._actions.append(Action("replan", running.trial))

    def plan_again_at(self, at: float) -> None:
        """Have the planner called at this time, if no event comes before."""
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)

    def remaining_epochs(self, running: RunningTrial) -> float:
        """Return the expected number of epochs that a trial still has to train, given its chance to pass each rung."""
        # The next rung is reached for sure; each stretch after it counts by the chance that the trial gets there.
        chances = (1.0, *self.survival(running))
        total, before = 0.0, running.epoch
        for chance, rung in zip(chances, self.rungs[running.rungs :], strict=False):
            total += chance * (rung - before)
            before = rung
        return total
