"""Estimators of the optimal checkpoint interval, compared.

Young (1974), Daly (2006) and the availability formula with recovery (arXiv 2410.18124), next to the exact optimum that
a Manager saves by.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from trainwright.checkpoint.policy.save_policy import Costs, exact_interval

__all__ = ["ESTIMATORS", "availability_interval", "daly_interval", "young_interval"]


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
