"""Batch sizes that keep to a service level: additive increase, multiplicative decrease (Clipper, NSDI 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["AIMD", "Adaptive"]

_COMFORTABLE = 0.9  # of the objective: up to here batches grow
_SHRINK = 0.9
_BUCKETS = 16  # steps from nothing to the most


@dataclass(frozen=True, kw_only=True, slots=True)
class AIMD:
    """The next batch size of an instance from what its last ones took; pure.

    With the 99th percentile at most 0.9 of the objective it grows by one bucket, a sixteenth of `most`; above the
    objective it shrinks to 0.9; between them it stays. It never leaves [least, most]: memory was allocated for `most`.
    """

    slo_seconds: float
    most: int
    least: int = 1
    window: int = 32  # latencies that decide once

    def after(self, batch: int, seconds: Sequence[float]) -> int:
        """Return the next batch size."""
        tail = float(np.quantile(np.asarray(seconds), 0.99))
        if tail > self.slo_seconds:
            return max(self.least, int(_SHRINK * batch))
        if tail <= _COMFORTABLE * self.slo_seconds:
            return min(self.most, batch + max(1, self.most // _BUCKETS))
        return batch


@dataclass(kw_only=True, slots=True)
class Adaptive:
    """An instance's batch size under a policy; without one it stays at the most."""

    policy: AIMD | None
    batch: int
    _seconds: list[float] = field(default_factory=list)

    def observe(self, seconds: float) -> None:
        """Note how long a segment was at the instance, from being sent to being reported."""
        if self.policy is None:
            return
        self._seconds.append(seconds)
        if len(self._seconds) >= self.policy.window:
            self.batch = self.policy.after(self.batch, self._seconds)
            self._seconds.clear()
