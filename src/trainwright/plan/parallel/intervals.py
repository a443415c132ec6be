"""Intervals: the calibration's errors, drawn and pushed through a plan's parts."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainwright.cluster import Cluster
from trainwright.plan.forecast import Breakdown, Forecast
from trainwright.randomness import rng

__all__ = ["UNCALIBRATED", "interval_of", "mark_within_error"]

UNCALIBRATED = 0.3
"""Relative error, at least, of what was never measured."""

_DRAWS = 200
_PARTS = {
    "compute": ("compute", "bubble", "update"),
    "links": ("communication",),
    "storage": ("input", "checkpoint"),
    "framework": ("framework",),
}


def interval_of(breakdown: Breakdown, cluster: Cluster) -> tuple[float, float]:
    """Return the 5 and 95 % points of an iteration's seconds over 200 draws, the same draws for every plan.

    Each group of parts errs by a lognormal factor of its own with the relative error that the calibration found (of
    links the largest of the tiers', and that of what hides behind computation); a cluster that nobody has measured errs
    by 30 % at least, all parts together.
    """
    errors = {
        "compute": cluster.errors.get("compute", 0.0),
        "links": math.hypot(
            max((cluster.errors.get(tier.name, 0.0) for tier in cluster.tiers), default=0.0),
            cluster.errors.get("overlap", 0.0),
        ),
        "storage": cluster.errors.get("storage", 0.0),
        "framework": cluster.errors.get("framework", 0.0),
    }
    # The same draws for every plan, so that differences between plans are not noise.
    normal = rng(0, "plan interval", 0).standard_normal((len(_PARTS), _DRAWS))
    total = np.zeros(_DRAWS)
    for number, (group, names) in enumerate(_PARTS.items()):
        seconds = math.fsum(getattr(breakdown, name) for name in names)
        total += seconds * np.exp(errors[group] * normal[number])
    low, high = (float(item) for item in np.quantile(total, [0.05, 0.95]))
    middle = breakdown.total
    # An unmeasured cluster errs in all parts together: at least 30 % either way.
    if not cluster.verified:
        low, high = min(low, middle * (1 - UNCALIBRATED)), max(high, middle * (1 + UNCALIBRATED))
    return min(low, middle), max(high, middle)


def mark_within_error(plans: Sequence[Forecast]) -> tuple[Forecast, ...]:
    """Return plans, best first, marked where more than half of an interval is shared with the best's."""
    if not plans:
        return ()
    best = plans[0].interval
    found = [plans[0]]
    for plan in plans[1:]:
        low, high = plan.interval
        shared = min(high, best[1]) - max(low, best[0])
        width = min(high - low, best[1] - best[0])
        found.append(replace(plan, within_error_of_best=width > 0 and shared > 0.5 * width))
    return tuple(found)
