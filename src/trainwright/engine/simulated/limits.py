"""When a simulated study ends: after a number of trials, or at the end of its time."""

import math
from dataclasses import dataclass

from trainwright.errors import EngineError

__all__ = ["SimulationLimits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationLimits:
    """A budget of trials, of seconds of the clock, of seconds of all devices together; None is no limit."""

    trials: int | None = None
    wall_seconds: float | None = None
    device_seconds: float | None = None

    def __post_init__(self) -> None:
        trials = self.trials
        if trials is not None and (isinstance(trials, bool) or not isinstance(trials, int) or trials < 1):
            raise EngineError(f"simulate: trials: got {trials!r}; allowed: a whole number >= 1")
        times = {"wall_seconds": self.wall_seconds, "device_seconds": self.device_seconds}
        for name, value in times.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and math.isfinite(value) and value > 0):
                raise EngineError(f"simulate: {name}: got {value!r}; allowed: a number > 0, or None for no limit")
        if trials is None and self.timeless:
            raise EngineError("simulate: nothing ends the study; give trials, wall_seconds or device_seconds")

    @property
    def timeless(self) -> bool:
        """Whether there is no budget of time."""
        return self.wall_seconds is None and self.device_seconds is None

    def remaining(self, started: int) -> int:
        """Return how many trials more may be started."""
        return 2**62 if self.trials is None else self.trials - started
