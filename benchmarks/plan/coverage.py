"""Coverage: how many measurements that a fit had not seen lie in its intervals, and how wide these are."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Coverage", "coverage"]

Floats = NDArray[np.float64]


class Coverage(NamedTuple):
    """Share of the measurements inside, and the mean factor by which the intervals reach to either side."""

    share: float
    factor: float

    def summary(self, name: str) -> Mapping[str, Any]:
        """Return both as numbers of a summary."""
        return {f"interval_coverage_{name}": self.share, f"interval_factor_{name}": self.factor}

    def __str__(self) -> str:
        """Return both as a cell of a table."""
        return f"{100 * self.share:.1f} % (within {self.factor:.2f}x)"


def coverage(low: Floats, high: Floats, measured: Floats) -> Coverage:
    """Return the coverage of intervals; the mean of their factors is geometric."""
    inside = (low <= measured) & (measured <= high)
    return Coverage(float(inside.mean()), float(np.exp(np.log(high / low).mean() / 2)))
