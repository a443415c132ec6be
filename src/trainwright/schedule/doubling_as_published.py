"""RASDA's allocation as its authors published it, with its faults: the baseline of all others."""

from collections import deque
from dataclasses import dataclass, field

from trainwright.schedule._resizing import Resizing, check_factor, check_start
from trainwright.schedule.desk import Desk, Seat

__all__ = ["DoublingAsPublished"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DoublingAsPublished(Resizing):
    """Double whoever passes a rung, without cap, fallback or shrink (RASDA, Aach et al., arXiv 2412.02729).

    A trial that passes the k-th rung at exactly that epoch gives everything back and waits until all of
    start * factor^(k+1) devices are free at once; new trials are served before it. A wait that cannot end stalls the
    study. `lost_resize=True` keeps a fault of the scheduler below it as well: of several trials that are to grow at
    one time, only the first does, and the others go on as they are. Kept for comparisons; use `Doubling` instead.
    """

    start: int = 1
    factor: int = 2
    lost_resize: bool = False

    def __post_init__(self) -> None:
        check_start("DoublingAsPublished", self.start)
        check_factor("DoublingAsPublished", self.factor)

    def planner(self) -> "_Planner":
        """Return a planner."""
        return _Planner(self)


@dataclass
class _Planner:
    policy: DoublingAsPublished
    queue: deque[tuple[int, int]] = field(default_factory=deque)  # trials that wait, with what they want

    def plan(self, desk: Desk) -> None:
        seat = desk.changed
        if seat is not None and self._doubles(desk, seat):
            size = self.policy.start * self.policy.factor**seat.rungs
            self.queue.append((seat.trial, size))
            desk.rest(seat, size)
        while desk.free >= self.policy.start and desk.begin():
            pass
        for trial, size in list(self.queue):
            if desk.free < self.policy.start:
                return
            if desk.free >= size and trial in desk.resting and desk.again(trial, size):
                self.queue.remove((trial, size))

    def _doubles(self, desk: Desk, seat: Seat) -> bool:
        """Whether the report was at a rung, neither late nor at the last epoch."""
        if seat.epoch != seat.rung_epoch or not seat.settled:
            return False
        return not (self.policy.lost_resize and any(trial in desk.resting for trial, _ in self.queue))
