"""How much faster a simulated trial is on more devices, and what a restart costs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.errors import EngineError

__all__ = ["Scaling"]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """`m` times the devices are `m**alpha` times as fast, or as `curve` says (factor of devices -> speed-up).

    Between the points of a curve it is interpolated on logarithms; outside it goes on with its last slope.
    """

    alpha: float = 0.9
    curve: Mapping[float, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1.2:
            raise EngineError(f"Scaling.alpha: got {self.alpha!r}; allowed: a number above 0, at most 1.2")
        for factor, speedup in self.curve.items():
            if not (factor > 0 and speedup > 0):
                raise EngineError(
                    f"Scaling.curve: got {{{factor!r}: {speedup!r}}}; allowed: factors and speed-ups > 0, such as "
                    "{1: 1.0, 2: 1.8, 4: 3.1}"
                )

    def speedup(self, factor: float) -> float:
        """Return how many times as fast a trial is on `factor` times its devices."""
        points = sorted({1.0: 1.0, **self.curve}.items())
        if len(points) == 1:
            return float(factor**self.alpha)
        place = max(1, min(len(points) - 1, sum(at < factor for at, _ in points)))
        (low, at_low), (high, at_high) = points[place - 1], points[place]
        slope = math.log(at_high / at_low) / math.log(high / low)
        return float(at_low * (factor / low) ** slope)
