"""What a placement is worth: a measurement, more is better, by whatever can tell one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainwright.serve.placement.placement import Placement

__all__ = ["Measurement", "PlacementCost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Rows a second, or the negative of a latency in seconds; minus infinity of a placement that failed."""

    value: float
    spread: float = 0.0  # standard error of the value
    per_unit: tuple[float, ...] = ()  # rows a second that each unit could answer alone
    failed: str | None = None  # why: out of memory, crash, timeout

    @classmethod
    def failure(cls, reason: str) -> "Measurement":
        """Return the measurement of a placement that does not run."""
        return cls(value=-math.inf, failed=reason)


class PlacementCost(Protocol):
    """What measures placements on one set of devices."""

    @property
    def noisy(self) -> bool:
        """Whether two measurements of one placement may differ."""

    def measure(self, placements: Sequence[Placement], floor: float = -math.inf) -> list[Measurement]:
        """Return a measurement of each; below `floor` any value will do that is below it too."""
