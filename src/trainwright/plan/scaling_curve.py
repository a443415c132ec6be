"""ScalingCurve: seconds of an iteration by number of devices, for whoever asks how much more devices help."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trainwright.errors import InputError

__all__ = ["ScalingCurve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingCurve:
    """Columns by number of devices, which rises; where nothing fits into memory the seconds are infinite."""

    devices: tuple[int, ...]
    seconds: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    strategies: tuple[str, ...] = ()
    """The best strategy at each number."""

    def __post_init__(self) -> None:
        columns = (self.seconds, self.low, self.high)
        if not self.devices or any(len(column) != len(self.devices) for column in columns):
            raise InputError("ScalingCurve: got columns of different lengths, or none; allowed: one entry a number")
        if any(a >= b for a, b in zip(self.devices, self.devices[1:], strict=False)) or self.devices[0] < 1:
            raise InputError(f"ScalingCurve.devices: got {self.devices}; allowed: rising numbers >= 1")

    def seconds_on(self, devices: float) -> float:
        """Return the seconds on so many devices: between two points straight in the logarithms of both.

        Beyond the last point nothing is gained; below the first that is feasible nothing fits.
        """
        # Points at which something fits, rising in devices.
        points = [(n, s) for n, s in zip(self.devices, self.seconds, strict=True) if math.isfinite(s)]
        if not points or devices < points[0][0]:
            return math.inf
        # Whoever has more devices may leave some idle, so that a curve never rises.
        least = [min(s for _, s in points[: place + 1]) for place in range(len(points))]
        for (below, _), (above, _), slow, fast in zip(points, points[1:], least, least[1:], strict=False):
            if devices in {below, above}:
                return slow if devices == below else fast
            if devices < above:
                part = math.log(devices / below) / math.log(above / below)
                return math.exp(math.log(slow) * (1 - part) + math.log(fast) * part)
        return least[-1]

    def speedups(self, *, devices: int = 1) -> Mapping[float, float]:
        """Return {factor of devices: speed-up} over `devices`: what the simulated engine's `Scaling` takes as curve."""
        start = self.seconds_on(devices)
        if not math.isfinite(start):
            raise InputError(f"ScalingCurve.speedups: got devices {devices}, on which nothing fits; give more")
        return {n / devices: start / self.seconds_on(n) for n in self.devices if n >= devices}
