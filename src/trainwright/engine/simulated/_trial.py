"""One simulated trial: how far it has come, and what happens to it next."""

import math
from dataclasses import dataclass

from trainwright.engine.simulated.task import Course

__all__ = ["Trial"]


@dataclass(slots=True)
class Trial:
    """A trial of one study. Epochs count from 1; 0 stands for none."""

    number: int
    course: Course
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
