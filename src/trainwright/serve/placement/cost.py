"""What a placement is worth: a measurement, more is better, by whatever can tell one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainwright.randomness import rng
from trainwright.serve.placement import Placement

__all__ = ["Cost", "InjectedCost", "Measurement"]


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


class Cost(Protocol):
    """What measures placements on one set of devices."""

    @property
    def noisy(self) -> bool:
        """Whether two measurements of one placement may differ."""

    def measure(self, placements: Sequence[Placement], floor: float = -math.inf) -> list[Measurement]:
        """Return a measurement of each; below `floor` any value will do that is below it too."""


@dataclass(kw_only=True)
class InjectedCost:
    """A function in place of measuring, with relative normal noise from a counter: the n-th call is always the same."""

    value: Callable[[Placement], float]  # minus infinity: does not run
    noise: float = 0.0  # standard deviation over the value
    seed: int = 0
    calls: int = 0  # made so far

    @property
    def noisy(self) -> bool:
        """Whether noise was asked for."""
        return self.noise > 0

    def measure(self, placements: Sequence[Placement], floor: float = -math.inf) -> list[Measurement]:  # noqa: ARG002
        """Return what the function says of each, and noise of its own for every call."""
        return [self._one(placement) for placement in placements]

    def _one(self, placement: Placement) -> Measurement:
        value = self.value(placement)
        self.calls += 1
        if value == -math.inf:
            return Measurement.failure("injected")
        if self.noise:
            value *= 1.0 + self.noise * float(rng(self.seed, "serve-noise", self.calls).standard_normal())
        return Measurement(value=value, spread=self.noise * abs(value))
