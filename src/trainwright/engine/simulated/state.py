"""The state of a simulation: its event queue, its trials, and what comes of the study: times, waits, a Gantt chart."""

import hashlib
import heapq
import math
from dataclasses import dataclass, field
from enum import IntEnum

from trainwright.engine.simulated.task import LearningCurve
from trainwright.errors import SchedulerStalled
from trainwright.schedule.policies.allocation_policy import Block

__all__ = ["NANO", "DeviceHold", "Event", "EventKind", "EventQueue", "SimulatedStudy", "SimulatedTrial", "Stall"]

NANO = 1_000_000_000
"""Nanoseconds a second: virtual times are whole ones, so that sums do not depend on the machine."""


class EventKind(IntEnum):
    """What happens at one time happens in this order; starts follow from each."""

    NODE_LOST = 0
    FAILED = 1
    REPORTED = 2
    CHECKPOINT = 3
    NODE_BACK = 4
    TIMER = 5


Event = tuple[int, EventKind, int, int, int]
"""Nanoseconds, kind, sequence, number of the trial or node, and a version, by which others can be void."""


class EventQueue:
    """A heap of events. Two events are never equal: ties of time and kind go by the order in which they were made."""

    def __init__(self, most: int) -> None:
        self._heap: list[Event] = []
        self._sequence = 0
        self._hash = hashlib.sha256()
        self._most = most  # events while time stands still, or while nothing but timers comes
        self._still = 0
        self.now = 0  # the time of the latest event noted

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, at: float, kind: EventKind, number: int, version: int) -> int:
        """Enter an event at so many seconds, or now if that is past, and return its nanoseconds."""
        # Whole nanoseconds, so that equal times are equal on every machine.
        nanoseconds = max(self.now, round(at * NANO))
        self._sequence += 1
        heapq.heappush(self._heap, (nanoseconds, kind, self._sequence, number, version))
        return nanoseconds

    def pop(self) -> Event:
        """Return the next event."""
        return heapq.heappop(self._heap)

    def note(self, event: Event) -> None:
        """Enter an event that happens into the digest; raise `SchedulerStalled` if time goes on no more."""
        nanoseconds, kind, _, number, _ = event
        # Timers move the clock without anything happening, so they count as standing still.
        self._still = self._still + 1 if nanoseconds == self.now or kind is EventKind.TIMER else 0
        if self._still > self._most:
            raise SchedulerStalled(
                f"simulate: {self._still} events in a row at {nanoseconds / NANO:g} s changed nothing, the last "
                f"{kind.name.lower()} of {number}; the policy keeps requesting devices that it does not use"
            )
        self.now = nanoseconds
        self._hash.update(b"%d %d %d\n" % (nanoseconds, kind, number))

    def note_start(self, trial: int, first: int, size: int) -> None:
        """Enter into the digest on which devices a trial starts."""
        self._hash.update(b"start %d %d %d\n" % (trial, first, size))

    @property
    def digest(self) -> str:
        """SHA-256 over all that was noted, in its order."""
        return self._hash.hexdigest()


@dataclass(slots=True)
class SimulatedTrial:
    """Its state between two events."""

    number: int
    course: LearningCurve
    started: bool = False
    trains: bool = False  # or restarts; else it has ended, or waits
    runs: int = 0  # how often it was started
    version: int = 0  # events of an earlier one are void
    checkpoint: int = 0  # the epoch from which it goes on
    reported: int = 0  # the last epoch reported
    loss: float = math.inf  # reported there
    began: float = 0.0  # when it trained on from its checkpoint, in seconds
    pace: float = 1.0  # speed on its devices, and its luck with them
    luck: float = 1.0
    batch: int = 0  # by goodput
    until: int = 0  # the epoch of its next event
    start_cost: float = 0.0  # seconds of its latest start, until a report tells of them
    size: int = 0  # devices there
    first: bool = False  # on one of them a process was started

    def seconds(self, epoch: int) -> float:
        """Return the seconds from its checkpoint to the end of an epoch."""
        return (self.course.seconds(epoch) - self.course.seconds(self.checkpoint)) / self.pace

    def ahead(self, clock: float) -> int:
        """Return its first epoch, while it runs, whose end is not before `clock`."""
        # Seconds of training on the task's own devices since the checkpoint.
        spent = (clock - self.began) * self.pace
        low, high, base = self.checkpoint, self.until, self.course.seconds(self.checkpoint)
        while low < high:
            middle = (low + high) // 2
            if self.course.seconds(middle) - base >= spent - 1e-6:
                high = middle
            else:
                low = middle + 1
        return low

    def behind(self, clock: float) -> int:
        """Return its last epoch, while it runs, whose end is not after `clock`."""
        epoch, spent = self.ahead(clock), (clock - self.began) * self.pace
        over = self.course.seconds(epoch) - self.course.seconds(self.checkpoint) > spent + 1e-6
        return max(self.checkpoint, epoch - over)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceHold:
    """A trial held `block` from `start` to `end` (s), and let go of it for `why`.

    It is "full", "stopped", "pause", "resize", "rest", "failed", "node lost", "out of time" or "stalled".
    """

    trial: int
    block: Block
    start: float
    end: float
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A trial that waits for `wanted` devices (0: for its policy to let it go on) of `devices`, for ever."""

    trial: int
    wanted: int
    devices: int


@dataclass(kw_only=True)
class SimulatedStudy:
    """One simulated study. Times in seconds from its start.

    `device_seconds` are those held, restarts and waits included, `trained_seconds` those of them in which a trial
    trained. `first_full_seconds` is when the first trial had its whole length (inf if none had), `full_loss` the best
    last loss of such trials (inf likewise). `resizes` are goings-on with another number of devices. `substitutions`
    counts the trials for which a table had not what was asked. `digest` is SHA-256 over all events in their order,
    `gantt` who held which devices when.
    """

    devices: int
    makespan_seconds: float = 0.0
    device_seconds: float = 0.0
    trained_seconds: float = 0.0
    first_full_seconds: float = math.inf
    full: int = 0
    trials: int = 0
    best_loss: float = math.inf
    full_loss: float = math.inf
    resizes: int = 0
    failed: int = 0
    substitutions: int = 0
    stalled: tuple[Stall, ...] = ()
    digest: str = ""
    gantt: list[DeviceHold] = field(default_factory=list)
    _holds: dict[int, tuple[Block, float]] = field(default_factory=dict, init=False, repr=False)
    # Devices before, of trials that wait for some.
    _sizes: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    @property
    def utilisation(self) -> float:
        """The share of all device time up to the makespan in which a trial trained."""
        total = self.makespan_seconds * self.devices
        return self.trained_seconds / total if total else 0.0

    def begin_hold(self, trial: int, block: Block, at: float) -> None:
        """Note that a trial holds a block from now on."""
        self._holds[trial] = block, at
        self.resizes += self._sizes.pop(trial, len(block)) != len(block)

    def end_hold(self, trial: int, at: float, why: str) -> None:
        """Note that it lets go of it, and why."""
        block, since = self._holds.pop(trial)
        self.makespan_seconds = at
        self.device_seconds += len(block) * (at - since)
        if why in {"resize", "rest", "node lost"}:
            self._sizes[trial] = len(block)
        if why == "full":
            self.full += 1
            self.first_full_seconds = min(self.first_full_seconds, at)
        self.failed += why == "failed"
        self.gantt.append(DeviceHold(trial=trial, block=block, start=since, end=at, why=why))

    def end_all(self, at: float, why: str) -> None:
        """Let whoever still holds devices let go of them, for `why`."""
        for trial in list(self._holds):
            self.end_hold(trial, at, why)

    def count_busy(self) -> int:
        """Return how many devices are held. O(trials that run)."""
        return sum(len(block) for block, _ in self._holds.values())

    def sum_seconds(self, at: float) -> float:
        """Return the device seconds held up to now. O(trials that run)."""
        return self.device_seconds + sum(len(block) * (at - since) for block, since in self._holds.values())
