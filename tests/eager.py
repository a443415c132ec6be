"""A policy for tests of what moves trials: who passes a rung gets twice its devices, whatever that is worth."""

from dataclasses import dataclass, field

from trainwright.schedule import Desk, Seat
from trainwright.schedule.policies.resizing import Resizing


@dataclass(frozen=True, kw_only=True)
class Eager(Resizing):
    """New trials first, then who has passed a rung, in turn."""

    start: int = 1

    def planner(self):
        return EagerPlanner()


@dataclass
class EagerPlanner:
    wishes: list[tuple[Seat, int]] = field(default_factory=list)

    def plan(self, desk: Desk) -> None:
        while desk.free >= desk.policy.start and desk.begin():
            pass
        seat = desk.changed
        if seat is not None and seat.settled and seat.rungs and seat.epoch == seat.rung_epoch:
            self.wishes = [wish for wish in self.wishes if wish[0] is not seat]
            self.wishes.append((seat, 2 * len(seat.block)))
        self.wishes = [
            (seat, size)
            for seat, size in self.wishes
            if desk.seats.get(seat.trial) is seat and not desk.move(seat, size)
        ]
