"""MarginalGain: gives free devices to the trials whose marginal gain in time is largest, if it is worth the restart."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from trainwright.schedule.allocator.device_allocator import DeviceAllocator, RunningTrial
from trainwright.schedule.policies.resizing import Resizing, shrink_back, use_faster_nodes
from trainwright.validators import number

__all__ = ["MarginalGain", "Rows", "minimise_makespan"]

Floats = NDArray[np.float64]

_DOUBLINGS = 5  # of a trial's devices, that are thought of at one time
_WORTH = 1.5  # a start must be worth so many times what it costs the trial that shrinks
_EFFICIENT = 1.5  # how many times as fast twice the devices make a trial that grows while others wait
_LINEAR = 1.7  # likewise, of one that may still be stopped at the last rung
_SOON = 0.25  # of an epoch: for so long devices may wait for a trial that grows while others wait
_MANY = 32  # trials at once, of which one may explore while others wait
_WORST = 0.75  # of a trial's peers are better, if it may explore
_PAUSE = 5.0  # restarts' time between two changes of one trial, before it shrinks


@dataclass(frozen=True, kw_only=True, slots=True)
class MarginalGain(Resizing):
    """Start new trials while there are any; then let the running ones grow, so that the last ends early.

    With T(w) the expected seconds that a trial still needs on w devices (each rung weighed by the chance to reach
    it) and c those of a restart, it may double only if T(w) > (1 + delta) (T(2w) + c). Of the sizes that are left, the
    running trials together get those by which the latest expected end is least within the devices that are free
    or will be freed by those that do not survive their next rung; each takes its share at its next checkpoint. While
    new trials wait only those grow, once, that have passed the last rung, if twice the devices make them half as fast
    again, or the last but one, if 1.7 times as fast: complete models come earlier, and the end hardly later.

    As long as no growth has been measured one trial grows, of the worst quarter of those that have come as far: where
    growth makes trials slower, as on a slow network with a small batch, the study's best is not the one to find out.

    Where the run has a budget of time (wall or device seconds), a new trial waits only while it could still be complete
    if it doubled its devices once; from then on devices go to growth first, and new trials get what is left. When new
    work comes while others have grown, a trial gives half of its devices back at a checkpoint if the start is worth
    more than what that costs it.

    For trials that choose their batch by goodput (`prepare(..., batch="goodput")`) T(w) is by the goodput on w devices
    at the batch that is best there, for the trial's own gradient noise.

    A plan looks at all running trials, in columns, where one may grow.
    """

    delta: Annotated[float, number(minimum=0)] = 0.1

    def planner(self) -> "_Planner":
        """Return a planner."""
        return _Planner(self)


def minimise_makespan(ends: Floats, costs: Floats, supply: float) -> NDArray[np.intp]:
    """Return for each of n trials the choice, of L, by which the latest end is least within `supply`.

    `ends` and `costs`, both (L, n), are when a trial ends by each choice (inf: not allowed) and the devices that it
    takes; the first choice costs nothing, later ones cost more. Of all choices that end early enough a trial gets the
    cheapest. The optimum is exact: the latest end is one of `ends`, found by bisection. O(L n log(L n)).
    """
    columns = np.arange(ends.shape[1])
    least = ends.argmin(axis=0)
    # The latest end is always one of these: between two of them no choice changes.
    levels = np.unique(ends[np.isfinite(ends)])

    def chosen(level: float) -> NDArray[np.intp]:
        early = ends <= level
        found: NDArray[np.intp] = np.where(early.any(axis=0), early.argmax(axis=0), least)
        return found

    # Bisection over the possible latest ends: the earliest one whose choices fit within the supply.
    low, high = np.searchsorted(levels, ends.min(axis=0).max()), len(levels) - 1
    high = min(high, int(np.searchsorted(levels, ends[0].max())))
    while low < high:
        middle = (int(low) + int(high)) // 2
        if costs[chosen(levels[middle]), columns].sum() <= supply:
            high = middle
        else:
            low = middle + 1
    return chosen(levels[high])


class Rows:
    """What is known of each trial that runs, in columns: O(1) to change one, all at once to look at them."""

    NAMES = (
        *("since", "togo", "after", "chance", "alone", "size", "speed"),
        *("settled", "looked", "noise", "model", "rungs", "loss", "node"),
    )

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._columns = np.zeros((len(self.NAMES), 64))
        self.trials: list[int] = []

    def __contains__(self, trial: int) -> bool:
        return trial in self._places

    def __len__(self) -> int:
        return len(self.trials)

    def put(self, trial: int, *values: float) -> None:
        """Set a trial's row, in the order of `NAMES`."""
        place = self._places.get(trial)
        if place is None:
            place = self._places[trial] = len(self.trials)
            self.trials.append(trial)
            if place == self._columns.shape[1]:
                self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        self._columns[:, place] = values

    def drop(self, trial: int) -> None:
        """Forget a trial; the last takes its place."""
        place, last = self._places.pop(trial), self.trials.pop()
        # The last row moves into the gap, so that the columns stay dense.
        if last != trial:
            self._columns[:, place] = self._columns[:, len(self.trials)]
            self._places[last], self.trials[place] = place, last

    def place(self, trial: int) -> int:
        """Return the number of its row."""
        return self._places[trial]

    def column(self, name: str) -> Floats:
        """Return a column, a view."""
        return self._columns[self.NAMES.index(name), : len(self.trials)]


@dataclass
class _Planner:
    policy: MarginalGain
    rows: Rows = field(default_factory=Rows)

    def plan(self, allocator: DeviceAllocator) -> None:
        running = allocator.changed
        if running is not None:
            shrink_back(allocator, running)
        allocator.start_waiting(new=False)
        known = bool(allocator.rungs) and allocator.estimates.epoch_seconds() is not None
        if allocator.new_trial_waits():
            if known and allocator.free >= self.policy.start and 2 * self.policy.start <= self._most(allocator):
                self._grow_one(allocator)
            allocator.start_waiting(new=True)
            full = allocator.free < self.policy.start and allocator.new_trial_waits()
            if full and running is not None and running.is_settled:
                self._shrink_trial(allocator, running)
        else:
            reserved: float = allocator.free
            if known:
                use_faster_nodes(allocator)
                if running is not None and running.is_settled and running.rungs < len(allocator.rungs):
                    self._grow_trial(allocator, running)
                reserved = self._ask_last_ones(allocator) if allocator.free else 0.0
            # Too late to be complete, but nobody else has use for these devices.
            if allocator.source.waits():
                allocator.start_waiting(new=True, reserved=reserved)

    def _most(self, allocator: DeviceAllocator) -> int:
        """Return the devices that a trial may have at most."""
        return min(self.policy.cap or allocator.slots, allocator.slots)

    # Growth.

    def _grow_one(self, allocator: DeviceAllocator) -> None:
        """While new trials wait, let one grow, or explore, that has come far and is at a checkpoint soon."""
        self._update_rows(allocator)
        rows, start = self.rows, self.policy.start
        alone, speed, size = (rows.column(name) for name in ("alone", "speed", "size"))
        late = rows.column("rungs") >= max(1, len(allocator.rungs) - 2)
        candidates = late & (size == start) & (rows.column("settled") > 0)
        unknown = self._unknown(allocator)
        if unknown.any():
            explores = allocator.slots >= _MANY * start and len(rows) > 1
            candidates = np.where(unknown, self._explorers() & explores, candidates)
        # Its devices idle until its next checkpoint.
        waits = rows.column("since") + alone / speed - allocator.at
        places = np.flatnonzero(candidates & (waits <= _SOON * alone / speed))
        if not len(places):
            return
        place = int(places[waits[places].argmin()])
        # Of what nobody knows the belief counts.
        faster = float(self._speeds(allocator, 2 * size)[place] / speed[place])
        running = allocator.running[rows.trials[place]]
        work = allocator.remaining_epochs(running) * alone[place] / speed[place]
        pays = work > (1 + self.policy.delta) * (work / faster + allocator.estimates.restart(2 * start))
        # Those that have yet to pass the last rung must lose next to nothing.
        least = _EFFICIENT if rows.column("after")[place] == 0 else _LINEAR
        if pays and (unknown[place] or faster >= least):
            allocator.resize(running, 2 * start)

    def _grow_trial(self, allocator: DeviceAllocator, running: RunningTrial) -> None:
        """Let a trial at a checkpoint take its share of the free devices, as far as there are blocks for it."""
        self._update_rows(allocator)
        if not self._may_grow(allocator)[self.rows.place(running.trial)]:
            return
        size = self._fair_size(allocator, running)
        # What is wanted may not be free as one block: half of it is tried then.
        while size > running.size and not (allocator.free >= size - running.size and allocator.resize(running, size)):
            size //= 2

    def _may_grow(self, allocator: DeviceAllocator) -> NDArray[np.bool_]:
        """Return which trials may grow: all of which it is known what growth does to them, else those who explore."""
        unknown = self._unknown(allocator)
        return ~unknown | self._explorers() if unknown.any() else ~unknown

    def _unknown(self, allocator: DeviceAllocator) -> NDArray[np.bool_]:
        """Return of which trials nobody knows how fast growth makes them: none was seen, no goodput says."""
        return (self.rows.column("model") < 0) & (allocator.estimates.known == 1)

    def _explorers(self) -> NDArray[np.bool_]:
        """Return which trials may be the first to grow: one at a time, of the worst quarter of their peers.

        Peers have passed as many rungs. What growth does to such a trial costs the study's best result nothing.
        """
        size, rungs, loss = (self.rows.column(name) for name in ("size", "rungs", "loss"))
        if (size > self.policy.start).any():
            return np.zeros(len(size), dtype=bool)
        better = np.empty(len(size), dtype=int)
        better[np.lexsort((loss, -rungs))] = np.arange(len(size))
        peers = len(size) - np.searchsorted(np.sort(rungs), rungs) - 1
        # Of three or four all but the leaders, as not each of them has room to grow.
        return np.where(peers > 0, better >= np.maximum(1, np.floor(_WORST * peers)), len(size) == 1)

    def _fair_size(self, allocator: DeviceAllocator, running: RunningTrial) -> int:
        """Return the size by which this trial ends no later than the last of all has to."""
        rows, place = self.rows, self.rows.place(running.trial)
        due, work, chance = self._next_checkpoints(allocator)
        size = rows.column("size")
        due[place], work[place], chance[place] = (
            allocator.at,
            allocator.remaining_epochs(running) * rows.column("alone")[place],
            1.0,
        )
        # The sizes of all trials together, so that the latest expected end is least.
        ends, costs = self._list_choices(allocator, due, work, size, _DOUBLINGS)
        # Devices of trials that will not survive their next rung are counted as free by then.
        supply = allocator.free + float(((1 - chance) * size).sum())
        doublings = int(minimise_makespan(ends, costs * chance, supply)[place])
        # Who explores does so for others, too.
        explores = self._unknown(allocator)[place] and len(ends) > 1 and np.isfinite(ends[1, place])
        return int(running.size) << max(doublings, int(explores))

    def _list_choices(
        self, allocator: DeviceAllocator, due: Floats, work: Floats, size: Floats, most: int
    ) -> tuple[Floats, Floats]:
        """Return, by doublings, when each trial would end (inf: not worth it, or not possible) and devices it takes."""
        cap = self._most(allocator)
        # What is not measured is tried two doublings at a time: a belief in its speed can be far off.
        step = 4 * np.maximum(size, self.policy.start * allocator.estimates.known)
        now = work / self.rows.column("speed")
        ends, costs = [due + now], [np.zeros_like(size)]
        for doublings in range(1, most + 1):
            larger = size * 2**doublings
            then = work / self._speeds(allocator, larger)
            restart = allocator.estimates.restart(int(larger[0]))
            # A doubling must pay for its restart and a margin, and stay within what has nearly been measured.
            allowed = (now > (1 + self.policy.delta) * (then + restart)) & (larger <= np.minimum(cap, step))
            if not allowed.any():
                break
            ends.append(np.where(allowed, due + then + restart, np.inf))
            costs.append(larger - size)
            now = then
        return np.array(ends), np.array(costs)

    def _speeds(self, allocator: DeviceAllocator, size: Floats) -> Floats:
        """Return how many times as fast each trial is on so many devices as on those of a new one."""
        estimates, noise = allocator.estimates, self.rows.column("noise")
        # Pairs of size and model are few.
        pairs, place = np.unique(np.stack([size, self.rows.column("model")]), axis=1, return_inverse=True)
        found = np.empty_like(size)
        for which, (devices, model) in enumerate(pairs.T.tolist()):
            own, ratio = place.reshape(-1) == which, devices / self.policy.start
            if model < 0:
                found[own] = estimates.speedup(ratio)
            else:
                found[own] = estimates.speedups(estimates.goodputs[int(model)], ratio, noise[own])
        return found * self.rows.column("node")

    def _ask_last_ones(self, allocator: DeviceAllocator) -> float:
        """Ask those that would end last to look in at their next checkpoint, as many as could grow.

        Return the devices that are kept for them.
        """
        self._update_rows(allocator)
        rows = self.rows
        if not len(rows):
            return 0.0
        due, work, _ = self._next_checkpoints(allocator)
        ends, _ = self._list_choices(allocator, due, work, rows.column("size"), 1)
        if len(ends) == 1:
            # No growth is worth it.
            return 0.0
        # Trials that end last are asked first, as many as could grow on the free devices.
        order = np.argsort(-ends[0], kind="stable")
        size, settled, looked = (rows.column(name) for name in ("size", "settled", "looked"))
        grows = self._may_grow(allocator) & (settled > 0) & np.isfinite(ends[1])
        wanted = np.where(grows, size, 0.0)[order]
        # For each, after those that end later.
        free = allocator.free - (np.cumsum(wanted) - wanted)
        short = free < size[order]
        last = int(short.argmax()) if short.any() else len(order)
        for place in order[:last][(wanted[:last] > 0) & (looked[order[:last]] == 0)].tolist():
            allocator.replan_at_checkpoint(allocator.running[rows.trials[place]])
            looked[place] = 1.0
        return float(wanted[:last].sum())

    # What is known of all.

    def _update_rows(self, allocator: DeviceAllocator) -> None:
        """Bring the rows up to what the allocator knows."""
        base = allocator.estimates.epoch_seconds() or 0.0
        for trial in sorted(allocator.touched):
            running = allocator.running.get(trial)
            if running is None:
                if trial in self.rows:
                    self.rows.drop(trial)
                continue
            epoch, since = running.measured_from or (running.epoch, allocator.at)
            # Its next report is its last.
            last = running.rungs >= len(allocator.rungs) - 1
            togo = allocator.rungs[min(running.rungs, len(allocator.rungs) - 1)] - epoch
            chance = 1.0 if last else next(iter(allocator.survival(running)), 1.0)
            after = (
                0.0
                if last
                else (allocator.remaining_epochs(running) - (allocator.rungs[running.rungs] - running.epoch))
                / max(chance, 1e-9)
            )
            estimates, ratio = allocator.estimates, len(running.block) / self.policy.start
            speed, model = estimates.speedup(ratio), -1
            if running.goodput is not None:
                # Devices and batch are chosen together: the speed is the goodput at the batch that goes with them.
                speed = float(estimates.speedups(running.goodput, ratio, np.array([running.noise]))[0])
                model = estimates.goodputs.index(running.goodput)
            alone, idle = running.start_epoch_seconds or base, running.is_settled
            node = allocator.block_speed(running.block)
            speed *= node
            row = (since, togo, after, chance, alone, running.size, speed, idle, running.replans, running.noise, model)
            self.rows.put(trial, *row, running.rungs, running.rung_loss, node)
        allocator.touched.clear()

    def _next_rung_times(self) -> Floats:
        """Return when each trial comes to its next rung."""
        rows = self.rows
        due: Floats = rows.column("since") + rows.column("togo") * rows.column("alone") / rows.column("speed")
        return due

    def _next_checkpoints(self, allocator: DeviceAllocator) -> tuple[Floats, Floats, Floats]:
        """Return when each trial can change its size, what it expects to do then, and the chance that it goes on."""
        rows = self.rows
        alone, speed, chance = (rows.column(name) for name in ("alone", "speed", "chance"))
        # A trial can change its size at its next epoch; at a rung only if it survives.
        left = np.maximum(self._next_rung_times() - allocator.at, 0.0)
        # Its epoch, at most.
        first = np.minimum(left, alone / speed)
        rung = left <= first
        after = rows.column("after") * alone
        work = np.where(rung, after, (left - first) * speed + chance * after)
        return allocator.at + first, work, np.where(rung, chance, 1.0)

    def _shrink_trial(self, allocator: DeviceAllocator, running: RunningTrial) -> None:
        """Let a trial at a checkpoint give half of its devices to work that waits, if that is worth it."""
        base, half = allocator.estimates.epoch_seconds(), running.size // 2
        restart = allocator.estimates.restart(half)
        if half < self.policy.start or base is None or allocator.at - running.resized_at < _PAUSE * restart:
            return
        speed, node = allocator.estimates.speedup, allocator.block_speed(running.block)
        work = allocator.remaining_epochs(running) * (running.start_epoch_seconds or base) / node
        # The start must gain clearly more than the shrinking trial loses.
        loss = work / speed(half / self.policy.start) + restart - work / speed(running.size / self.policy.start)
        start = allocator.rungs[0] * base
        if start / self.policy.start > _WORTH * loss / half and start > 2 * restart:
            allocator.resize(running, half)
