"""Estimates parallel speedup of trials, their goodput, restart cost and time left: priors, replaced by measurements.

Goodput is throughput times statistical efficiency (Pollux, Qiao et al., OSDI 2021): how much progress a trial makes a
second with so many devices and such a batch, which follows from step times and the gradient noise scale.
"""

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import ScheduleError

__all__ = ["Estimates", "Goodput", "StepShape", "adascale_gain", "interpolate_speedup", "seconds_left"]

Floats = NDArray[np.float64]

_PRIOR_WEIGHT = 0.02
"""Of what is believed of a step before it was measured, beside a measured one."""
_ALL, _FIRST = 0, -1
"""Instead of a number of devices: restarts onto any, and those for which processes had to be started."""
_MOST_DOUBLINGS = 6
"""Of the loader's batch."""


class StepShape(NamedTuple):
    """How a step is taken: on how many devices, `accumulate` times `micro_batch` samples on each."""

    devices: int
    micro_batch: int
    accumulate: int

    @property
    def batch(self) -> int:
        """The samples of a step."""
        return self.devices * self.micro_batch * self.accumulate


def adascale_gain(noise: float, batch: float, reference: float) -> float:
    """Return how many steps of the reference batch one of `batch` is worth (Johnson et al., arXiv 2007.05105).

    `noise` is the gradient noise scale in samples: 1 without noise, batch / reference with nothing else.
    """
    return (noise / reference + 1) / (noise / batch + 1)


@dataclass(slots=True, eq=False)
class Goodput:
    """How long steps take, and what they are worth, for trials of one batch.

    A step takes accumulate * (a + b micro_batch) + [devices > 1] (c + d log2 devices), fitted by relative errors: on
    the step times of Sia (SOSP 2023) 3 to 10 % in the median. The unit is the first step of a trial, for trials of one
    study may be of different sizes. `reference` is the batch of the user's loader, `micro_batch` the most samples that
    a device takes at a time, `largest` the largest batch that is thought of.
    """

    reference: int
    micro_batch: int
    largest: int
    times: dict[StepShape, float] = field(default_factory=dict)
    noise: float = 0.0
    """The latest noise scale of a trial."""
    _factors: Floats | None = None

    def observe(self, shape: StepShape, seconds: float, unit: float | None = None) -> float:
        """Note the seconds of a trial's step, and return the trial's unit: None for its first ones."""
        known = self.times.get(shape)
        if unit is None:
            # Of one that begins elsewhere the first time says how large it is, and nothing of the shape.
            unit = seconds / self.expect(shape) if self.times else seconds
        else:
            # The latest counts half.
            time = seconds / unit
            self.times[shape], self._factors = time if known is None else (known + time) / 2, None
        self.times.setdefault(shape, seconds / unit)
        return unit

    def shape(self, devices: int, batch: int) -> StepShape:
        """Return how devices share a batch."""
        share = -(-batch // devices)
        accumulate = -(-share // self.micro_batch)
        return StepShape(devices, -(-share // accumulate), accumulate)

    def expect(self, shape: StepShape) -> float:
        """Return the time that a step takes: as measured, else by the fit."""
        return self.times.get(shape) or float(_features([shape])[0] @ self._fit())

    def choose_batch(self, devices: int, noise: float) -> int:
        """Return the batch of the largest goodput; another than the loader's must be better by a twentieth."""
        rates = {batch: float(rate[0]) for batch, rate in self._rates(devices, np.array([noise])).items()}
        best = max(rates, key=rates.__getitem__)
        return best if rates[best] > 1.05 * rates.get(self.reference, 0.0) else self.reference

    def rate(self, devices: int, noises: Floats) -> Floats:
        """Return the progress in a unit of time, in steps of the loader's batch, at the best batch for each noise."""
        found: Floats = np.max(list(self._rates(devices, noises).values()), axis=0)
        return found

    def _rates(self, devices: int, noises: Floats) -> dict[int, Floats]:
        # No batch is tried that is larger than twice the largest that was.
        most = min(self.largest, 2 * max((shape.batch for shape in self.times), default=self.reference))
        batches = [self.reference << doublings for doublings in range(_MOST_DOUBLINGS + 1)]
        tried = [batch for batch in batches if devices <= batch <= most] or [max(self.reference, devices)]
        return {
            batch: (noises / self.reference + 1) / (noises / batch + 1) / self.expect(self.shape(devices, batch))
            for batch in tried
        }

    def _fit(self) -> Floats:
        """Fit the four terms, none of them negative."""
        if self._factors is None:
            from scipy.optimize import nnls

            shapes = list(self.times)
            times = np.array([self.times[shape] for shape in shapes])
            # Until others are measured: half of a step does not depend on its samples, and talking takes a tenth.
            first = min(range(len(shapes)), key=lambda place: shapes[place])
            alone = times[first] / shapes[first].accumulate
            believed = np.array([alone / 2, alone / 2 / shapes[first].micro_batch, 0.1 * alone, 0.05 * alone])
            rows = np.vstack([_features(shapes) / times[:, None], np.diag(_PRIOR_WEIGHT / believed)])
            self._factors, _ = nnls(rows, np.append(np.ones(len(shapes)), np.full(4, _PRIOR_WEIGHT)))
        return self._factors


def _features(shapes: Sequence[StepShape]) -> Floats:
    """Return what the terms of a step's time are multiplied by, a row a shape."""
    return np.array([(s.accumulate, s.accumulate * s.micro_batch, s.devices > 1, math.log2(s.devices)) for s in shapes])


@dataclass(slots=True)
class Estimates:
    """Speed with `m` times the devices is `m**alpha`, a restart takes `restart_seconds`, until they are measured.

    The prior of the speed is that of a batch that is held, in the step times of Sia (SOSP 2023): .25 to .56. Measured,
    a speed-up is the median of those at that `m`, or follows the slope of the nearest measured ones; a restart the
    0.9-quantile of those onto so many devices (of all, while there are none). In a study the start of a new trial
    counts as a restart; one that waited for the first process of a device counts only while there was no other, as no
    later one will. Where trials choose their batch by goodput, its model says what devices are worth: `goodputs`
    has one for each batch of a loader, and ratios are of `start` devices.
    """

    start: int = 1
    alpha: float = 0.5
    restart_seconds: float = 30.0
    _speedups: dict[float, list[float]] = field(default_factory=dict, init=False)
    _curve: dict[float, float] = field(default_factory=dict, init=False)  # their medians
    _restarts: dict[int, list[float]] = field(default_factory=dict, init=False)
    _epochs: list[float] = field(default_factory=list, init=False)  # seconds of an epoch of new trials, the latest
    goodputs: list[Goodput] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1.2:
            raise ScheduleError(f"alpha: got {self.alpha!r}; allowed: a number above 0, at most 1.2")
        if not self.restart_seconds >= 0:
            raise ScheduleError(f"restart_seconds: got {self.restart_seconds!r}; allowed: a number >= 0")

    def speedup(self, ratio: float) -> float:
        """Return how many times as fast a trial is on `ratio` times its devices."""
        if self.goodputs:
            return float(self.speedups(self.goodputs[0], ratio, np.array([self.goodputs[0].noise]))[0])
        return interpolate_speedup(self._curve, ratio, self.alpha)

    def speedups(self, goodput: Goodput, ratio: float, noises: Floats) -> Floats:
        """Return how many times as fast trials of these noise scales are on `ratio` times their devices."""
        return goodput.rate(round(ratio * self.start), noises) / goodput.rate(self.start, noises)

    def goodput_of(self, reference: int, micro_batch: int, largest: int) -> Goodput:
        """Return the model of trials whose loaders have this batch."""
        for goodput in self.goodputs:
            if (goodput.reference, goodput.micro_batch) == (reference, micro_batch):
                return goodput
        self.goodputs.append(Goodput(reference=reference, micro_batch=micro_batch, largest=largest))
        return self.goodputs[-1]

    def step_times(self) -> tuple[tuple[tuple[int, int], StepShape, float], ...]:
        """Return the step times behind the goodput, each with the loader's batch and the limit of micro-batches."""
        return tuple(
            ((goodput.reference, goodput.micro_batch), shape, time)
            for goodput in self.goodputs
            for shape, time in goodput.times.items()
        )

    @property
    def known(self) -> float:
        """The largest ratio whose speed-up has been measured, 1 if none has."""
        return max(self._curve, default=1.0)

    def restart(self, size: int) -> float:
        """Return the seconds that a restart onto `size` devices takes."""
        measured = self._restarts.get(size) or self._restarts.get(_ALL) or self._restarts.get(_FIRST)
        return measured[len(measured) * 9 // 10] if measured else self.restart_seconds

    def saw_epochs(self, seconds: float, epochs: int = 1) -> None:
        """Note the seconds of each of some epochs of a trial of the starting size."""
        for _ in range(min(epochs, 64)):
            insort(self._epochs, seconds)
        # Both ends are dropped, so that the median follows the latest without being pulled by outliers.
        while len(self._epochs) > 64:
            del self._epochs[0], self._epochs[-1]

    def epoch_seconds(self) -> float | None:
        """Return the median seconds of an epoch at the starting size, None if there was none."""
        return self._epochs[len(self._epochs) // 2] if self._epochs else None

    def saw_speedup(self, ratio: float, speedup: float) -> None:
        """Note that a trial was `speedup` times as fast on `ratio` times the devices."""
        measured = self._speedups.setdefault(ratio, [])
        insort(measured, speedup)
        self._curve[ratio] = measured[len(measured) // 2]

    def saw_restart(self, size: int, seconds: float, *, first: bool = False) -> None:
        """Note a restart onto `size` devices, to one of which it was the `first`."""
        for key in (_FIRST,) if first else (size, _ALL):
            insort(self._restarts.setdefault(key, []), seconds)


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
