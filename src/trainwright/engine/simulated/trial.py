"""The state of one trial in a simulated study."""

import math
from dataclasses import dataclass

from trainwright.engine.simulated.task import LearningCurve

__all__ = ["SimulatedTrial"]


@dataclass(slots=True)
class SimulatedTrial:
    """Its state between two events."""

    number: int
    course: LearningCurve
    started: bool = False
    trains: bool = False  # or restarts; else it has ended, waits, or is held at a checkpoint
    runs: int = 0  # how often it was started
    version: int = 0  # events of an earlier one are void
    checkpoint: int = 0  # the epoch from which it goes on
    reported: int = 0  # the last epoch reported
    best: float = math.inf
    began: float = 0.0  # when it trained on from its checkpoint, in seconds
    pace: float = 1.0  # speed on its devices, and its luck with them
    until: int = 0  # the epoch of its next event

    def seconds(self, epoch: int) -> float:
        """Return the seconds from its checkpoint to the end of an epoch."""
        return (self.course.seconds(epoch) - self.course.seconds(self.checkpoint)) / self.pace

    def ahead(self, clock: float) -> int:
        """Return its first epoch, while it runs, whose end is not before `clock`."""
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
