"""The 90 % interval of a prediction: one error model for all plans, by what is new in the question.

The logarithm of measured over predicted seconds is taken to be normal. Its standard deviation is

- of a cluster fitted to runs: what the fit left over (`errors["runs"]`), and more for each e-fold that the devices or
  the model's parameters lie beyond those runs;
- of a cluster that `plan calibrate` measured: the errors of its parts, each by its share of the iteration;
- of a preset that nobody measured: what presets were found to err by, on public runs of machines that were left out
  and whose hosts and input kept up. The high end is that of a slow host, or of an input that nobody described.

The constants are those of `benchmarks/plan`, where the intervals' coverage and width stand.
"""

import math

from trainwright.cluster import Cluster
from trainwright.model.profile import Profile
from trainwright.plan.forecast import Breakdown
from trainwright.plan.layout import Degrees

__all__ = ["SLOW_HOST_SECONDS", "SLOW_INPUT_SECONDS", "interval_of"]

_PRESET_ERROR = 0.2
"""Standard deviation of the logarithm, of presets as they are."""
SLOW_HOST_SECONDS = 8e-5
"""For an operation, of the slowest host among the public runs."""
SLOW_INPUT_SECONDS = 1e-3
"""For a sample of a device: an image read and decoded by the processes that a device has for it."""
_ROUNDNESS = 6.0  # of the norm between a step and what it may wait for
_BEYOND = {"devices": 0.03, "parameters": 0.05}
"""What an e-fold beyond the runs adds."""
_QUANTILE = 1.645
_PARTS = {
    "compute": ("compute", "bubble", "update"),
    "links": ("communication",),
    "storage": ("input", "checkpoint"),
    "framework": ("framework",),
}


def interval_of(
    breakdown: Breakdown, cluster: Cluster, profile: Profile, degrees: Degrees, *, unknown_seconds: float
) -> tuple[float, float]:
    """Return the low and high end between which the seconds of an iteration lie with 90 %.

    `unknown_seconds` is what a slow host or input would take, which of a preset's machine may be so.
    """
    factor = math.exp(_QUANTILE * _log_deviation(breakdown, cluster, profile, degrees))
    total = breakdown.total
    slowest = total if cluster.verified else (total**_ROUNDNESS + unknown_seconds**_ROUNDNESS) ** (1 / _ROUNDNESS)
    return total / factor, slowest * factor


def _log_deviation(breakdown: Breakdown, cluster: Cluster, profile: Profile, degrees: Degrees) -> float:
    """Return the standard deviation of the logarithm of measured over predicted seconds."""
    if not cluster.verified:
        return _PRESET_ERROR
    if "runs" in cluster.errors:
        asked = {"devices": float(degrees.devices), "parameters": float(max(1, profile.parameters))}
        beyond = [
            slope * max(0.0, math.log(low / asked[name]), math.log(asked[name] / high))
            for name, slope in _BEYOND.items()
            for low, high in [cluster.seen.get(name, (asked[name], asked[name]))]
        ]
        return math.hypot(cluster.errors["runs"], *beyond)
    links = max((cluster.errors.get(tier.name, 0.0) for tier in cluster.tiers), default=0.0)
    errors = {**cluster.errors, "links": math.hypot(links, cluster.errors.get("overlap", 0.0))}
    # Each part errs by a factor of its own.
    total = max(breakdown.total, 1e-300)
    shares = {name: math.fsum(getattr(breakdown, part) for part in parts) / total for name, parts in _PARTS.items()}
    return math.hypot(*(share * errors.get(name, 0.0) for name, share in shares.items()))
