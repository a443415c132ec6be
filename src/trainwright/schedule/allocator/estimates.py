"""Estimates of speed, of restarts and of the time that is left: priors, replaced by what has been measured."""

import math
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.errors import ScheduleError

__all__ = ["Estimates", "interpolate_speedup", "seconds_left"]


@dataclass(slots=True)
class Estimates:
    """Speed with `m` times the devices is `m**alpha`, a restart takes `restart_seconds`, until they are measured.

    The prior of the speed is that of a batch that is held, in the step times of Sia (SOSP 2023): .25 to .56. Measured,
    a speed-up is the median of those at that `m`, or follows the slope of the nearest measured ones; a restart the
    0.9-quantile of those onto so many devices (of all, while there are none). In a study the start of a new trial
    counts as a restart.
    """

    alpha: float = 0.5
    restart_seconds: float = 30.0
    _speedups: dict[float, list[float]] = field(default_factory=dict)
    _curve: dict[float, float] = field(default_factory=dict)  # their medians
    _restarts: dict[int, list[float]] = field(default_factory=dict)
    _epochs: list[float] = field(default_factory=list)  # seconds of an epoch of new trials, the latest

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1.2:
            raise ScheduleError(f"alpha: got {self.alpha!r}; allowed: a number above 0, at most 1.2")
        if not self.restart_seconds >= 0:
            raise ScheduleError(f"restart_seconds: got {self.restart_seconds!r}; allowed: a number >= 0")

    def speedup(self, ratio: float) -> float:
        """Return how many times as fast a trial is on `ratio` times its devices."""
        return interpolate_speedup(self._curve, ratio, self.alpha)

    @property
    def known(self) -> float:
        """The largest ratio whose speed-up has been measured, 1 if none has."""
        return max(self._curve, default=1.0)

    def restart(self, size: int) -> float:
        """Return the seconds that a restart onto `size` devices takes."""
        measured = self._restarts.get(size) or self._restarts.get(0)
        return measured[len(measured) * 9 // 10] if measured else self.restart_seconds

    def saw_epoch(self, seconds: float) -> None:
        """Note the seconds of an epoch of a trial of the starting size."""
        insort(self._epochs, seconds)
        # Both ends are dropped, so that the median follows the latest without being pulled by outliers.
        if len(self._epochs) > 64:
            del self._epochs[0], self._epochs[-1]

    def epoch_seconds(self) -> float | None:
        """Return the median seconds of an epoch at the starting size, None if there was none."""
        return self._epochs[len(self._epochs) // 2] if self._epochs else None

    def saw_speedup(self, ratio: float, speedup: float) -> None:
        """Note that a trial was `speedup` times as fast on `ratio` times the devices."""
        measured = self._speedups.setdefault(ratio, [])
        insort(measured, speedup)
        self._curve[ratio] = measured[len(measured) // 2]

    def saw_restart(self, size: int, seconds: float) -> None:
        """Note a restart onto `size` devices."""
        insort(self._restarts.setdefault(size, []), seconds)
        insort(self._restarts.setdefault(0, []), seconds)


def interpolate_speedup(curve: Mapping[float, float], factor: float, alpha: float) -> float:
    """Return the speed-up on `factor` times the devices by a curve of factors, `factor**alpha` if it is empty.

    It is 1 at 1, interpolated on logarithms between points, and goes on with the slope of the last two outside.
    """
    # Every curve passes through (1, 1): as many devices are as fast.
    points = sorted({1.0: 1.0, **curve}.items())
    if len(points) == 1:
        return float(factor**alpha)
    # The segment around the factor, or the outermost one, whose slope is continued.
    place = max(1, min(len(points) - 1, sum(at < factor for at, _ in points)))
    (low, at_low), (high, at_high) = points[place - 1], points[place]
    slope = math.log(at_high / at_low) / math.log(high / low)
    return float(at_low * (factor / low) ** slope)


def seconds_left(
    wall_seconds: float | None, device_seconds: float | None, *, at: float, spent: float, devices: int
) -> float:
    """Return the seconds until one of two budgets is used, inf if there is none.

    `at` seconds of the wall clock and `spent` device seconds are gone, and `devices` are busy from now on.
    """
    # The more devices are busy, the sooner shared device seconds are used.
    wall = math.inf if wall_seconds is None else wall_seconds - at
    shared = math.inf if device_seconds is None or not devices else (device_seconds - spent) / devices
    return max(0.0, min(wall, shared))
