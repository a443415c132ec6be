"""The desk where devices are given out: who runs on which, what waits; the same for real engines and the simulator."""

import math
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from trainwright.schedule.allocator.estimates import Estimates
from trainwright.schedule.allocator.free_slots import Room
from trainwright.schedule.policies.allocation_policy import (
    Action,
    AllocationPolicy,
    Block,
    Go,
    Hold,
    Look,
    Move,
    Rest,
    Start,
    Work,
)

__all__ = ["Desk", "Seat", "Source"]


class Source(Protocol):
    """What waits for devices."""

    def next_work(self, *, new: bool = True) -> Work | None:
        """Return the next piece of work (interrupted before promoted before new), or None. It is handed out once.

        Without `new` no new trial is started.
        """

    def waits(self) -> bool:
        """Whether there would be new trials to start."""


@dataclass(slots=True)
class Seat:
    """A trial that runs: on what, how far, and where it is to move."""

    trial: int
    block: Block
    epoch: int = 0
    rungs: int = 0  # that it has passed
    rung_epoch: int = 0  # the last of them
    loss: float = float("inf")
    epoch_seconds: float | None = None  # on these devices
    alone: float | None = None  # on the devices of a new trial
    began: tuple[int, float] | None = None  # an epoch and a time, from which to measure
    looked: bool = False  # its next checkpoint is awaited
    moved: float = float("-inf")  # when it last changed its devices
    target: Block | None = None
    rests: bool = False
    held: bool = False  # at its checkpoint, on its devices
    wanted: int = 0  # devices that it rests for

    @property
    def size(self) -> int:
        """The devices that it has, or will have."""
        return len(self.target if self.target is not None else self.block)

    @property
    def settled(self) -> bool:
        """Whether no change of its devices is under way."""
        return self.target is None and not self.rests


@dataclass
class Desk:
    """Keeps the seats, and asks the policy's planner after every event. All times are `at` seconds of the caller's."""

    policy: AllocationPolicy
    source: Source
    room: Room
    slots: int
    rungs: tuple[int, ...]  # epochs at which trials are compared, and the last epoch
    survival: Callable[[Seat], tuple[float, ...]]
    left: Callable[[], float] = field(default_factory=lambda: _endless)  # seconds until the budget of time is used
    estimates: Estimates = field(default_factory=Estimates)
    seats: dict[int, Seat] = field(default_factory=dict)
    resting: dict[int, Seat] = field(default_factory=dict)
    at: float = 0.0
    touched: set[int] = field(default_factory=set)  # trials of which something changed; emptied by whoever looked
    changed: Seat | None = None  # whose report was the event: it is at a checkpoint
    wake_at: float | None = None

    def __post_init__(self) -> None:
        self._planner = self.policy.planner()
        self._actions: list[Action] = []

    # Told by whoever runs trials.

    def reported(self, trial: int, epoch: int, loss: float, at: float) -> None:
        """Note a report; `gone` follows if the trial does not go on."""
        self.at = at
        seat = self.seats[trial]
        if seat.began is not None and epoch > seat.began[0]:
            seat.epoch_seconds = (at - seat.began[1]) / (epoch - seat.began[0])
            if len(seat.block) == self.policy.start:
                self.estimates.saw_epoch(seat.epoch_seconds)
                seat.alone = seat.epoch_seconds
            elif seat.alone and seat.epoch_seconds:  # an epoch of a table may take no time
                self.estimates.saw_speedup(len(seat.block) / self.policy.start, seat.alone / seat.epoch_seconds)
        seat.began = epoch, at
        seat.epoch, seat.loss, seat.looked = epoch, loss, False
        self.touched.add(trial)
        while seat.rungs < len(self.rungs) and self.rungs[seat.rungs] <= epoch:
            seat.rung_epoch = self.rungs[seat.rungs]
            seat.rungs += 1
        self.changed = seat

    def moved(self, trial: int, at: float) -> None:
        """Note that a trial has left its block for the one that was held for it."""
        seat = self.seats[trial]
        assert seat.target is not None  # noqa: S101 -- nobody else moves trials
        kept = set(seat.target)
        self.room.give([slot for slot in seat.block if slot not in kept])
        seat.block, seat.target, seat.moved, seat.began, seat.held = seat.target, None, at, None, False
        self.touched.add(trial)

    def rested(self, trial: int) -> None:
        """Note that a trial has given its devices back, to be started again."""
        seat = self.seats.pop(trial)
        self.touched.add(trial)
        seat.rests = seat.held = False
        self.room.give(seat.block)
        self.resting[trial] = seat

    def gone(self, trial: int) -> None:
        """Note that a trial runs no more: it has ended, or waits for a promotion."""
        self.resting.pop(trial, None)
        seat = self.seats.pop(trial, None)
        if seat is not None:
            self.touched.add(trial)
            if seat is self.changed:
                self.changed = None
            self.room.give({*seat.block, *(seat.target or ())})

    def plan(self, at: float) -> list[Action]:
        """Ask the planner what to do now."""
        self.at = at
        self.wake_at = None
        self._actions = []
        self._planner.plan(self)
        self.changed = None
        return self._actions

    # Asked by planners.

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self.room.free

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes that blocks can have, ascending."""
        return self.room.sizes()

    def waits(self) -> bool:
        """Whether a new trial waits that could be complete before the run ends, if it doubled its devices once."""
        if not self.source.waits():
            return False
        left, base, start = self.left(), self.estimates.epoch_seconds(), self.policy.start
        if base is None or left == math.inf or not self.rungs:
            return True
        faster = self.estimates.speedup(2) if 2 * start <= self.slots else 1.0
        return self.estimates.restart(start) + self.rungs[-1] * base / max(1.0, faster) <= left

    def begin(self, *, new: bool = True) -> bool:
        """Start the next piece of work on a new trial's devices; return whether there was any."""
        block = self.room.take(self.policy.start)
        if block is None:
            return False
        work = self.source.next_work(new=new)
        if work is None:
            self.room.give(block)
            return False
        seat = Seat(trial=work.trial, block=block, epoch=work.epoch)
        seat.began = None if work.epoch else (0, self.at)  # a restart takes its time
        seat.rungs = bisect(self.rungs, work.epoch)
        seat.rung_epoch = self.rungs[seat.rungs - 1] if seat.rungs else 0
        self._sit(work, block, seat)
        return True

    def again(self, trial: int, size: int) -> bool:
        """Start a resting trial on `size` devices; return whether they were free."""
        block = self.room.take(size)
        if block is None:
            return False
        seat = self.resting.pop(trial)
        seat.block, seat.moved, seat.began = block, self.at, None
        self._sit(Work(trial, seat.epoch), block, seat)
        return True

    def _sit(self, work: Work, block: Block, seat: Seat) -> None:
        self.seats[work.trial] = seat
        self.touched.add(work.trial)
        self._actions.append(Start(work, block))

    def move(self, seat: Seat, size: int) -> bool:
        """Let a trial go on with `size` devices from its next checkpoint; return whether they were free.

        A trial that has gone gets none, nor has it to go: a planner may not have noticed.
        """
        if self.seats.get(seat.trial) is not seat:
            return False
        block = seat.block[:size] if size < seat.size else self.room.grow(seat.target or seat.block, size)
        if block is None:
            return False
        if seat.target is not None:  # it grows once more: one move
            self.room.give(set(seat.target).difference(block, seat.block))
            self._actions = [action for action in self._actions if action != Move(seat.trial, seat.target)]
        seat.target = block
        self.touched.add(seat.trial)
        self._actions.append(Move(seat.trial, block))
        return True

    def rest(self, seat: Seat, wanted: int) -> None:
        """Let a trial give its devices back at its next checkpoint, and wait for `wanted` ones."""
        seat.rests, seat.wanted = True, wanted
        self._actions.append(Rest(seat.trial))

    def hold(self, seat: Seat) -> None:
        """Let a trial that is at a checkpoint wait there, on its devices."""
        seat.held = True
        self.touched.add(seat.trial)
        self._actions.append(Hold(seat.trial))

    def go(self, seat: Seat) -> None:
        """Let a held trial train on where it is."""
        if self.seats.get(seat.trial) is not seat:
            return
        seat.held, seat.began = False, (seat.epoch, self.at)
        self.touched.add(seat.trial)
        self._actions.append(Go(seat.trial))

    def look(self, seat: Seat) -> None:
        """Ask to be asked when a trial is at its next checkpoint."""
        if seat.looked:
            return
        seat.looked = True
        self._actions.append(Look(seat.trial))

    def wake(self, at: float) -> None:
        """Ask to be asked again at this time, if nothing happens before."""
        self.wake_at = at if self.wake_at is None else min(self.wake_at, at)

    def work(self, seat: Seat) -> float:
        """Return the epochs that a trial has still before it, each weighed with the chance that it comes to it."""
        chances = (1.0, *self.survival(seat))
        total, before = 0.0, seat.epoch
        for chance, rung in zip(chances, self.rungs[seat.rungs :], strict=False):
            total += chance * (rung - before)
            before = rung
        return total


def _endless() -> float:
    return math.inf
