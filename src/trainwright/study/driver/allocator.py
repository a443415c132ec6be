"""The desk as a driver keeps it: who leaves its devices at its next report, and where it starts again."""

import time
from typing import NamedTuple

from trainwright.schedule import Action, Block, Desk, Go, Move, Rest, Start

__all__ = ["Allocator", "Launch"]


class Launch(NamedTuple):
    """A trial that is to start on a block; `before` is how many devices it had until now, if it comes from others."""

    trial: int
    block: Block
    before: int | None = None


_HOLD_SECONDS = 900.0
"""For which a trial is held at most: its other ranks wait beside it, and would give up after twice as long."""


class Allocator:
    """Tells the desk what happens to trials, and collects what is to be started, for when the engine is at leisure.

    A trial moves in two steps, each a record: its run ends at a report, after its checkpoint; it starts on the block
    that was held for it. In between it is `kept`: nobody is to go on with it elsewhere.
    """

    def __init__(self, desk: Desk, kept: set[int], *, holds: bool) -> None:
        self.desk = desk
        self._holds = holds  # whether the engine can keep a trial waiting at a report
        self._held: dict[int, float] = {}  # trials that wait there, since when
        self._answers: list[tuple[int, bool]] = []  # those of them that are to go on (there), and that are to move
        self._kept = kept
        self._launches: list[Launch] = []
        self._left: dict[int, float] = {}  # trials under way to their devices, since when
        self._arrived: dict[int, tuple[float, float]] = {}  # those that reported there: start, and an epoch's seconds

    @property
    def moving(self) -> bool:
        """Whether a trial is to start on other devices at once."""
        return bool(self._launches)

    @property
    def held(self) -> list[int]:
        """The trials that wait at a report."""
        return list(self._held)

    def plan(self) -> None:
        """Ask the policy what to do."""
        self._note(self.desk.plan(time.monotonic()))
        late = time.monotonic() - _HOLD_SECONDS
        for trial in [trial for trial, since in self._held.items() if since < late]:
            self.desk.go(self.desk.seats[trial])
            self._answer(trial, goes_on=True)

    def answers(self) -> list[tuple[int, bool]]:
        """Return which trials that were held go on where they are, and which do so on other devices."""
        answers, self._answers = self._answers, []
        return answers

    def _answer(self, trial: int, *, goes_on: bool) -> None:
        if self._held.pop(trial, None) is not None:
            self._answers.append((trial, goes_on))

    def take(self) -> list[Launch]:
        """Return what is to be started now."""
        launches, self._launches = self._launches, []
        return launches

    def reported(self, trial: int, epoch: int, loss: float, ran: float) -> None:
        """Note a report, `ran` seconds after the training function was entered.

        One of an epoch that was trained before, for want of a checkpoint, tells of time only. A start takes what passed
        before the function was entered, and what its first epoch takes longer than the second: models and data are made
        ready in it.
        """
        if not self.desk.policy.resizes:
            return
        seat, estimates, now = self.desk.seats[trial], self.desk.estimates, time.monotonic()
        start = None
        if (since := self._left.pop(trial, None)) is not None:
            entered = max(since, now - ran)
            start = entered - since
            seat.began = min(seat.epoch, epoch - 1), entered
            estimates.saw_restart(len(seat.block), start)
        if epoch <= seat.epoch:
            seat.began = epoch, now
            return
        self.desk.reported(trial, epoch, loss, now)
        seconds = seat.epoch_seconds or 0.0
        if start is not None:
            self._arrived[trial] = start, seconds
        elif trial in self._arrived:
            start, first = self._arrived.pop(trial)
            estimates.saw_restart(len(seat.block), start + max(0.0, first - seconds))

    def ends(self) -> None:
        """Note that the trial that has just reported will not train on."""
        self.desk.changed = None

    def stays(self, trial: int) -> bool | None:
        """Return whether a trial that has just reported and goes on does so where it is; None: it waits for more."""
        if not self.desk.policy.resizes:
            return True
        seat = self.desk.seats[trial]
        if seat.settled:
            self.plan()
        if seat.held and self._holds:
            self._held[trial] = time.monotonic()
            return None
        if seat.held:
            self.desk.go(seat)  # it trains while it waits for more devices, and moves at a later report
        return seat.settled

    def left(self, trial: int) -> None:
        """Note that a trial has ended its run to go on elsewhere: at once, or when there is room."""
        seat = self.desk.seats[trial]
        self._kept.add(trial)
        self._arrived.pop(trial, None)
        if seat.target is None:
            self.desk.rested(trial)
            return
        before, now = len(seat.block), time.monotonic()
        self._left[trial] = now
        self.desk.moved(trial, now)
        self._launches.append(Launch(trial, seat.block, before))

    def falls_back(self, trial: int, before: int) -> bool:
        """Let a trial that did not begin on more devices start on as many as `before`; False if it had no fewer."""
        seat = self.desk.seats[trial]
        if before >= len(seat.block) or seat.target is not None or not self.desk.move(seat, before):
            return False
        self._kept.add(trial)
        self._left.pop(trial, None)
        self.desk.moved(trial, time.monotonic())
        self._launches.append(Launch(trial, seat.block))
        return True

    def gone(self, trial: int) -> None:
        """Note that a trial has let go of its devices."""
        self._left.pop(trial, None)
        self._arrived.pop(trial, None)
        self._held.pop(trial, None)
        self._answers = [answer for answer in self._answers if answer[0] != trial]
        self.desk.gone(trial)

    def _note(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._launches.append(Launch(action.work.trial, action.block))
                self._left[action.work.trial] = time.monotonic()
            elif isinstance(action, Go | Move | Rest):
                self._answer(action.trial, goes_on=isinstance(action, Go))
