"""How much faster a simulated trial is on more devices, and what a restart costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.errors import EngineError
from trainwright.schedule.allocator.estimates import interpolated

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
        return interpolated(self.curve, factor, self.alpha)
