"""The state of a simulation: its event queue and its trials."""

import hashlib
import heapq
import math
from dataclasses import dataclass
from enum import IntEnum

from trainwright.engine.simulated.task import LearningCurve
from trainwright.errors import SchedulerStalled

__all__ = ["NANO", "Event", "EventKind", "EventQueue", "SimulatedTrial"]

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
    until: int = 0  # the epoch of its next event

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
