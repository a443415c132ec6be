"""MarginalGain: each free device goes where it saves most (water-filling)."""

import heapq
from dataclasses import dataclass, field

from trainwright.errors import ScheduleError
from trainwright.schedule._rule import PromotionRule
from trainwright.schedule.desk import Desk, Seat
from trainwright.schedule.doubling import check_cap, check_room, check_start
from trainwright.schedule.room import Nodes, Room

__all__ = ["MarginalGain"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MarginalGain:
    """Start new trials while there are any; then double the trials that gain most by it, at their next checkpoint.

    With T(w) the expected seconds that a trial still needs on w devices and c those of a restart, it doubles only if
    T(w) > (1 + delta) (T(2w) + c), and for the price v (T(w) - T(2w) - c) / w, v its chance to become the best; the
    greatest price comes first. O(classes) per step, trials of one rung and one size being a class.
    """

    start: int = 1
    delta: float = 0.1
    cap: int | None = None

    def __post_init__(self) -> None:
        check_start("MarginalGain", self.start)
        check_cap("MarginalGain", self.start, self.cap)
        if not self.delta >= 0:
            raise ScheduleError(f"MarginalGain.delta: got {self.delta!r}; allowed: a number >= 0")

    @property
    def resizes(self) -> bool:
        """It does."""
        return True

    def check(self, slots: int, slots_per_node: int, rule: PromotionRule) -> None:  # noqa: ARG002 -- the protocol's
        """Refuse an engine that is too small for a new trial."""
        check_room("MarginalGain", self.start, slots)

    def room(self, slots: int, slots_per_node: int) -> Room:
        """Return nodes with buddies inside."""
        return Nodes(slots, slots_per_node)

    def planner(self) -> "_Planner":
        """Return a planner."""
        return _Planner(self)


_PATIENCE = 0.5  # of what a growth saves up to the next rung, a trial waits for it
Class = tuple[int, int, int]  # rungs passed, epoch of the last report, devices


@dataclass(slots=True)
class _Wish:
    seat: Seat
    size: int
    until: float


@dataclass
class _Planner:
    policy: MarginalGain
    classes: dict[Class, list[tuple[float, int]]] = field(default_factory=dict)  # heaps of (-chance, trial)
    wishes: list[_Wish] = field(default_factory=list)

    def plan(self, desk: Desk) -> None:
        seat = desk.changed
        if seat is not None:
            self._enter(seat)
        self._serve(desk)
        while desk.free >= self.policy.start and desk.begin():
            pass
        if not desk.source.waits():
            if seat is not None and seat.settled and seat.rungs < len(desk.rungs):
                self._here(desk, seat)
            if desk.free and not self.wishes:
                self._look(desk)
        later = [wish.until for wish in self.wishes if wish.until > desk.at]
        if later:
            desk.wake(min(later))

    def _here(self, desk: Desk, seat: Seat) -> None:
        """Let a trial at a checkpoint grow, or wait at its rung for devices that will soon be free."""
        if not self.wishes:
            earned = self.policy.start * 2**seat.rungs
            while (gain := self._gain(desk, seat, seat.size)) and desk.free >= seat.size:
                price = gain / seat.size
                before = (
                    0.0
                    if seat.size < earned
                    else sum(
                        other.size
                        for other in desk.seats.values()
                        if other is not seat and self._gain(desk, other, other.size) / other.size > price * 1.01
                    )
                )
                if desk.free - seat.size < before or not desk.move(seat, seat.size * 2):
                    break
        if seat.settled and seat.epoch == seat.rung_epoch:
            self._wait(desk, seat)

    def _look(self, desk: Desk) -> None:
        """Let those that gain most grow at their next checkpoint, if devices are free then."""
        free = desk.free
        for _, key in sorted(
            ((price, key) for key in list(self.classes) if (price := self._price(desk, key))), reverse=True
        ):
            if free <= 0:
                return
            heap = self.classes[key]
            desk.look(desk.seats[heap[0][1]])
            free -= key[2]

    def _enter(self, seat: Seat) -> None:
        chance = (seat.among - seat.rank) / seat.among
        heapq.heappush(self.classes.setdefault((seat.rungs, seat.epoch, seat.size), []), (-chance, seat.trial))

    def _wait(self, desk: Desk, seat: Seat) -> None:
        """At its rung, where it may grow at once, a trial waits for devices that will soon be free."""
        epoch_seconds = self._epoch_seconds(desk)
        if epoch_seconds is None or not self._gain(desk, seat, seat.size):
            return
        ratio = seat.size / self.policy.start
        segment = (desk.rungs[seat.rungs] - seat.epoch) * epoch_seconds
        saved = segment / desk.estimates.speedup(ratio) - segment / desk.estimates.speedup(2 * ratio)
        until = desk.at + saved * _PATIENCE
        coming = sum(
            other.size
            for other in desk.seats.values()
            if other is not seat and other.settled and not other.held and self._due(desk, other) < until
        )
        owed = sum(wish.size for wish in self.wishes)
        if until > desk.at and coming + desk.free >= seat.size + owed:
            desk.hold(seat)
            self.wishes.append(_Wish(seat, seat.size, until))
            self.wishes.sort(key=lambda wish: (-wish.seat.rungs, wish.seat.loss, wish.seat.trial))

    def _due(self, desk: Desk, seat: Seat) -> float:
        if seat.began is None:
            return seat.since + desk.rungs[0] * (self._epoch_seconds(desk) or 0.0)
        epoch_seconds = (self._epoch_seconds(desk) or 0.0) / desk.estimates.speedup(len(seat.block) / self.policy.start)
        return seat.began[1] + (desk.rungs[seat.rungs] - seat.began[0]) * epoch_seconds

    def _epoch_seconds(self, desk: Desk) -> float | None:
        return desk.estimates.epoch_seconds()

    def _serve(self, desk: Desk) -> None:
        """Let those that wait grow as soon as what they wait for is free, or go on when it is too late."""
        for wish in list(self.wishes):
            if desk.move(wish.seat, wish.seat.size * 2):
                self.wishes.remove(wish)
                self._enter(wish.seat)
            elif desk.at >= wish.until:
                desk.go(wish.seat)
                self.wishes.remove(wish)

    def _price(self, desk: Desk, key: Class) -> float:
        """Return what a device is worth to the first of a class, 0 if nothing."""
        heap = self.classes[key]
        while heap:
            seat = desk.seats.get(heap[0][1])
            if seat is not None and (seat.rungs, seat.epoch, seat.size) == key:
                break
            heapq.heappop(heap)
        if not heap or seat is None:
            return 0.0
        return self._gain(desk, seat, key[2]) / key[2]

    def _gain(self, desk: Desk, seat: Seat, size: int) -> float:
        """Return the seconds that doubling from `size` would save, 0 if it is not worth a restart."""
        if size * 2 > min(self.policy.cap or desk.slots, desk.slots):
            return 0.0
        epoch_seconds = desk.estimates.epoch_seconds()
        if epoch_seconds is None:
            return 0.0
        ratio = size / self.policy.start
        work = desk.work(seat) * epoch_seconds
        now = work / desk.estimates.speedup(ratio)
        then = work / desk.estimates.speedup(2 * ratio)
        restart = desk.estimates.restart(size * 2)
        if now <= (1 + self.policy.delta) * (then + restart):
            return 0.0
        return now - then - restart
