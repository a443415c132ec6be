"""Estimators of the optimal checkpoint interval, compared.

Young (1974), Daly (2006) and the availability formula with recovery (arXiv 2410.18124), next to the exact optimum that
a Manager saves by. All are judged by the same expected wall time.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trainwright.checkpoint.policy.interval import Costs, exact_interval, wait_for_commit

__all__ = [
    "ESTIMATORS",
    "IntervalEstimate",
    "availability_interval",
    "compare_estimators",
    "daly_interval",
    "young_interval",
]


def young_interval(costs: Costs) -> float:
    """Return Young's interval, sqrt(2 M C): good while C is far below M."""
    return math.sqrt(2 * costs.mtbf_seconds * costs.cost_seconds)


def daly_interval(costs: Costs) -> float:
    """Return Daly's interval, the higher-order one for C < 2 M, else M."""
    # Daly's series holds for C < 2 M only.
    if costs.cost_seconds >= 2 * costs.mtbf_seconds:
        return costs.mtbf_seconds
    x = costs.cost_seconds / (2 * costs.mtbf_seconds)
    return young_interval(costs) * (1 + math.sqrt(x) / 3 + x / 9) - costs.cost_seconds


def availability_interval(costs: Costs) -> float:
    """Return the interval that maximises availability with recovery in the model of arXiv 2410.18124."""
    cost = costs.cost_seconds
    return cost + math.sqrt(2 * (costs.mtbf_seconds + costs.recovery_seconds) * cost + cost * cost)


ESTIMATORS: Mapping[str, Callable[[Costs], float]] = MappingProxyType(
    {"exact": exact_interval, "daly": daly_interval, "young": young_interval, "availability": availability_interval}
)
"""Every estimator by name, the default first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalEstimate:
    """What one estimator advises, and what following it costs."""

    name: str
    interval_seconds: float
    wall_per_useful: float

    @property
    def availability(self) -> float:
        """The share of the wall time that is useful."""
        return 1 / self.wall_per_useful


def compare_estimators(costs: Costs) -> tuple[IntervalEstimate, ...]:
    """Return what every estimator advises; all are judged by the same expected wall time."""
    found = []
    for name, estimator in ESTIMATORS.items():
        interval = wait_for_commit(estimator(costs), costs)
        found.append(
            IntervalEstimate(name=name, interval_seconds=interval, wall_per_useful=costs.wall_per_useful(interval))
        )
    return tuple(found)
