"""MarginalGain: devices go where they bring the end of all nearer, and growth must be worth its restart."""

from dataclasses import dataclass, field

import numpy as np

from trainwright.errors import ScheduleError
from trainwright.schedule.allocator.allocator import Desk, Seat
from trainwright.schedule.policies.filling import Floats, Rows, fill
from trainwright.schedule.policies.resizing import Resizing, check_cap, check_start, retreat

__all__ = ["MarginalGain"]

_DOUBLINGS = 5  # of a trial's devices, that are thought of at one time
_PATIENCE = 0.5  # of what a growth saves up to the next rung, a trial waits for it
_WORTH = 1.5  # a start must be worth so many times what it costs the trial that shrinks
_PAUSE = 5.0  # restarts' time between two changes of one trial, before it shrinks


@dataclass(frozen=True, kw_only=True, slots=True)
class MarginalGain(Resizing):
    """Start new trials while there are any; then let the running ones grow, so that the last ends early.

    With T(w) the expected seconds that a trial still needs on w devices (each rung weighed by the chance to reach
    it) and c those of a restart, it may double only if T(w) > (1 + delta) (T(2w) + c). Of the sizes that are left, the
    running trials together get those by which the latest expected end is least within the devices that are free
    or will be freed by those that do not survive their next rung; each takes its share at its next checkpoint, and at
    a rung waits a little for what others are about to free. While new trials wait nobody grows, so that the first
    complete ones come as early as without growth.

    Where the run has a budget of time (wall or device seconds), a new trial waits only while it could still be complete
    if it doubled its devices once; from then on devices go to growth first, and new trials get what is left. When new
    work comes while others have grown, a trial gives half of its devices back at a checkpoint if the start is worth
    more than what that costs it.

    A plan looks at all running trials, in columns, where one may grow, and at none while new trials wait.
    """

    start: int = 1
    delta: float = 0.1
    cap: int | None = None

    def __post_init__(self) -> None:
        check_start("MarginalGain", self.start)
        check_cap("MarginalGain", self.start, self.cap)
        if not self.delta >= 0:
            raise ScheduleError(f"MarginalGain.delta: got {self.delta!r}; allowed: a number >= 0")

    def planner(self) -> "_Planner":
        """Return a planner."""
        return _Planner(self)


@dataclass(slots=True)
class _Wish:
    """A trial held at its rung until it can double, or until then."""

    seat: Seat
    until: float


@dataclass
class _Planner:
    policy: MarginalGain
    rows: Rows = field(default_factory=Rows)
    wishes: list[_Wish] = field(default_factory=list)

    def plan(self, desk: Desk) -> None:
        seat = desk.changed
        self._serve(desk)
        if seat is not None:
            retreat(desk, seat)
        self._begin(desk, new=desk.waits())
        if desk.waits():
            if seat is not None and seat.settled and desk.free < self.policy.start:
                self._shrink(desk, seat)
        else:
            kept: float = desk.free
            if desk.rungs and desk.estimates.epoch_seconds() is not None:
                if seat is not None and seat.settled and seat.rungs < len(desk.rungs):
                    self._grow(desk, seat)
                kept = self._look(desk) if desk.free and not self.wishes else desk.free
            if desk.source.waits():  # too late to be complete, but nobody else has use for these devices
                self._begin(desk, new=True, kept=kept)
        later = [wish.until for wish in self.wishes if wish.until > desk.at]
        if later:
            desk.wake(min(later))

    def _begin(self, desk: Desk, *, new: bool, kept: float = 0.0) -> None:
        """Start what waits, with or without new trials, on all free devices but so many."""
        while desk.free - kept >= self.policy.start and desk.begin(new=new):
            pass

    # Growth.

    def _grow(self, desk: Desk, seat: Seat) -> None:
        """Let a trial at a checkpoint take its share, or wait at its rung for devices that will soon be free."""
        want = self._share(desk, seat)
        size = want
        while size > seat.size and not (desk.free >= size - seat.size and desk.move(seat, size)):
            size //= 2
        if seat.settled and want > seat.size and seat.epoch == seat.rung_epoch:
            self._wait(desk, seat)

    def _share(self, desk: Desk, seat: Seat) -> int:
        """Return the size by which this trial ends no later than the last of all has to."""
        self._update(desk)
        rows, place = self.rows, self.rows.place(seat.trial)
        due, work, chance = self._checkpoints(desk)
        size = rows.column("size")
        due[place], work[place], chance[place] = desk.at, desk.work(seat) * rows.column("alone")[place], 1.0
        ends, costs = self._choices(desk, due, work, size, _DOUBLINGS)
        supply = desk.free + float(((1 - chance) * size).sum())
        return int(seat.size) << int(fill(ends, costs * chance, supply)[place])

    def _choices(self, desk: Desk, due: Floats, work: Floats, size: Floats, most: int) -> tuple[Floats, Floats]:
        """Return, by doublings, when each trial would end (inf: not worth it, or not possible) and devices it takes."""
        sizes, place = np.unique(size, return_inverse=True)  # they are few
        cap = min(self.policy.cap or desk.slots, desk.slots)
        # What is not measured is tried two doublings at a time: a belief in its speed can be far off.
        step = 4 * np.maximum(size, self.policy.start * desk.estimates.known)
        now = work / self.rows.column("speed")
        ends, costs = [due + now], [np.zeros_like(size)]
        for doublings in range(1, most + 1):
            larger = size * 2**doublings
            speeds = [desk.estimates.speedup(each * 2**doublings / self.policy.start) for each in sizes.tolist()]
            then = work / np.array(speeds)[place]
            restart = desk.estimates.restart(int(larger[0]))
            allowed = (now > (1 + self.policy.delta) * (then + restart)) & (larger <= np.minimum(cap, step))
            if not allowed.any():
                break
            ends.append(np.where(allowed, due + then + restart, np.inf))
            costs.append(larger - size)
            now = then
        return np.array(ends), np.array(costs)

    def _wait(self, desk: Desk, seat: Seat) -> None:
        """Hold a trial at its rung if others are about to free what it wants."""
        place = self.rows.place(seat.trial)
        segment = (desk.rungs[seat.rungs] - seat.epoch) * self.rows.column("alone")[place]
        ratio = seat.size / self.policy.start
        saved = segment / desk.estimates.speedup(ratio) - segment / desk.estimates.speedup(2 * ratio)
        until = desk.at + saved * _PATIENCE
        soon = (self._due() < until) & (np.arange(len(self.rows)) != place)
        held = sum(wish.seat.size for wish in self.wishes)
        coming = float(self.rows.column("size")[soon].sum()) - held
        if until > desk.at and coming + desk.free >= seat.size + held:
            desk.hold(seat)
            self.wishes.append(_Wish(seat, until))

    def _serve(self, desk: Desk) -> None:
        """Let those that wait grow as soon as they can, in the order in which they came, or go on when it is late."""
        for wish in list(self.wishes):
            grows = wish.seat.held and desk.move(wish.seat, wish.seat.size * 2)
            if grows or desk.at >= wish.until or not wish.seat.held:
                self.wishes.remove(wish)
                if not grows and wish.seat.held and wish.seat.trial in desk.seats:
                    desk.go(wish.seat)

    def _look(self, desk: Desk) -> float:
        """Ask those that would end last to look in at their next checkpoint, as many as could grow.

        Return the devices that are kept for them.
        """
        self._update(desk)
        rows = self.rows
        if not len(rows):
            return 0.0
        due, work, _ = self._checkpoints(desk)
        ends, _ = self._choices(desk, due, work, rows.column("size"), 1)
        if len(ends) == 1:
            return 0.0  # no growth is worth it
        order = np.argsort(-ends[0], kind="stable")
        size, settled, looked = (rows.column(name) for name in ("size", "settled", "looked"))
        wanted = np.where((settled > 0) & np.isfinite(ends[1]), size, 0.0)[order]
        free = desk.free - (np.cumsum(wanted) - wanted)  # for each, after those that end later
        short = free < size[order]
        last = int(short.argmax()) if short.any() else len(order)
        for place in order[:last][(wanted[:last] > 0) & (looked[order[:last]] == 0)].tolist():
            desk.look(desk.seats[rows.trials[place]])
            looked[place] = 1.0
        return float(wanted[:last].sum())

    # What is known of all.

    def _update(self, desk: Desk) -> None:
        """Bring the rows up to what the desk knows."""
        base = desk.estimates.epoch_seconds() or 0.0
        for trial in sorted(desk.touched):
            seat = desk.seats.get(trial)
            if seat is None:
                if trial in self.rows:
                    self.rows.drop(trial)
                continue
            epoch, since = seat.began or (seat.epoch, desk.at)
            last = seat.rungs >= len(desk.rungs) - 1  # its next report is its last
            togo = desk.rungs[min(seat.rungs, len(desk.rungs) - 1)] - epoch
            chance = 1.0 if last else next(iter(desk.survival(seat)), 1.0)
            after = 0.0 if last else (desk.work(seat) - (desk.rungs[seat.rungs] - seat.epoch)) / max(chance, 1e-9)
            speed = desk.estimates.speedup(len(seat.block) / self.policy.start)
            alone, idle = seat.alone or base, seat.settled and not seat.held
            self.rows.put(trial, since, togo, after, chance, alone, seat.size, speed, idle, seat.looked)
        desk.touched.clear()

    def _due(self) -> Floats:
        """Return when each trial comes to its next rung."""
        rows = self.rows
        due: Floats = rows.column("since") + rows.column("togo") * rows.column("alone") / rows.column("speed")
        return due

    def _checkpoints(self, desk: Desk) -> tuple[Floats, Floats, Floats]:
        """Return when each trial can change its size, what it expects to do then, and the chance that it goes on."""
        rows = self.rows
        alone, speed, chance = (rows.column(name) for name in ("alone", "speed", "chance"))
        left = np.maximum(self._due() - desk.at, 0.0)
        first = np.minimum(left, alone / speed)  # its epoch, at most
        rung = left <= first
        after = rows.column("after") * alone
        work = np.where(rung, after, (left - first) * speed + chance * after)
        return desk.at + first, work, np.where(rung, chance, 1.0)

    def _shrink(self, desk: Desk, seat: Seat) -> None:
        """Let a trial at a checkpoint give half of its devices to work that waits, if that is worth it."""
        base, half = desk.estimates.epoch_seconds(), seat.size // 2
        restart = desk.estimates.restart(half)
        if half < self.policy.start or base is None or desk.at - seat.moved < _PAUSE * restart:
            return
        speed = desk.estimates.speedup
        work = desk.work(seat) * (seat.alone or base)
        loss = work / speed(half / self.policy.start) + restart - work / speed(seat.size / self.policy.start)
        start = desk.rungs[0] * base
        if start / self.policy.start > _WORTH * loss / half and start > 2 * restart:
            desk.move(seat, half)
