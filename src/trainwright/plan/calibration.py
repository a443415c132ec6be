"""Calibration of a cluster from measured training steps, by the same forecasts that users are given.

A cluster's figures are multiplied by factors, one for the speed of computation and one for the bandwidth of each level
of the network, and get seconds of overhead an iteration. Factors without influence on the measured steps are left out:
computation, for instance, where the profile's layers were timed. What the fit leaves over becomes the relative error
that intervals are made of.

Factors are searched on a logarithmic scale and residuals are log(predicted / measured), so that an error of 10 % counts
the same for a second and for an hour. The loss is quadratic up to a tolerance and linear beyond, so that one bad run
pulls no more than any other (soft L1; Huber 1964).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.profile import Profile
from trainwright.plan.layout import Layout
from trainwright.plan.parallel.mesh import Floats

__all__ = ["MeasuredRun", "calibrate_cluster"]

_LARGEST_FACTOR = 20.0
_TOLERANCE = 0.05  # relative error up to which errors count by their square
_INFLUENCE = 1e-3  # relative change of some prediction, if a factor is halved


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """A training that was timed: the model, how it was run, and the seconds of an iteration."""

    profile: Profile
    layout: Layout
    seconds: float
    optimizer: str = "adamw"


def calibrate_cluster(
    cluster: Cluster, runs: Sequence[MeasuredRun], predict: Callable[[Cluster, MeasuredRun], float]
) -> Cluster:
    """Return the cluster with the figures for which `predict` comes closest to the runs' seconds.

    Raises `InputError` unless there are more runs than factors that they determine, each of more than 0 seconds.
    """
    from scipy.optimize import least_squares

    seconds = np.array([run.seconds for run in runs], dtype=np.float64)
    if not runs or not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise InputError(f"runs: got seconds {seconds.tolist()!r}; allowed: one or more runs, each above 0 seconds")

    def predict_all(values: Mapping[str, float]) -> Floats:
        changed = _with_factors(cluster, values)
        return np.array([predict(changed, run) for run in runs])

    figures = {name: box for name, box in _boxes(cluster, seconds).items() if _influences(name, box[1], predict_all)}
    if len(runs) <= len(figures):
        names = ", ".join(figures)
        raise InputError(f"runs: got {len(runs)}; allowed: more than the {len(figures)} figures to fit ({names})")
    low, start, high = np.log(np.array(list(figures.values()))).T

    def values_at(place: Floats) -> dict[str, float]:
        return dict(zip(figures, np.exp(place).tolist(), strict=True))

    def residuals(place: Floats) -> Floats:
        logs: Floats = np.log(predict_all(values_at(place)) / seconds)
        return logs

    # Trust regions inside the bounds; the start may not lie on one of them.
    best = least_squares(
        residuals,
        np.clip(start, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_TOLERANCE,
    )
    # Each fitted figure takes one degree of freedom from the residuals.
    error = math.sqrt(float(np.square(residuals(best.x)).sum()) / (len(runs) - len(figures)))
    parts = ("compute", "framework", *(tier.name for tier in cluster.tiers))
    return replace(
        _with_factors(cluster, values_at(best.x)),
        verified=True,
        errors={**cluster.errors, **dict.fromkeys(parts, error)},
        conditions={**cluster.conditions, "fitted": f"to {len(runs)} measured training steps"},
    )


def _boxes(cluster: Cluster, seconds: Floats) -> dict[str, tuple[float, float, float]]:
    """Return by figure the least value, where the search starts, and the largest."""
    typical = float(np.median(seconds))
    factors = ["compute", *(f"bandwidth of {tier.name}" for tier in cluster.tiers)]
    known = min(max(cluster.overhead_seconds, typical * 1e-3), typical)
    return {
        **dict.fromkeys(factors, (1 / _LARGEST_FACTOR, 1.0, _LARGEST_FACTOR)),
        "overhead seconds": (typical * 1e-6, known, typical * 2),
    }


def _influences(name: str, start: float, predict_all: Callable[[Mapping[str, float]], Floats]) -> bool:
    """Return whether halving one figure alone changes some prediction."""
    before, after = (predict_all({name: start * factor}) for factor in (1.0, 0.5))
    # Seconds of overhead start so low that half of them may not be seen; every run has them.
    return name == "overhead seconds" or bool((np.abs(after / before - 1) > _INFLUENCE).any())


def _with_factors(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    device, speed = cluster.device, values.get("compute", 1.0)
    return replace(
        cluster,
        device=replace(
            device,
            flops={name: rate * speed for name, rate in device.flops.items()},
            memory_bandwidth=device.memory_bandwidth * speed,
        ),
        tiers=tuple(
            replace(tier, bandwidth=tier.bandwidth * values.get(f"bandwidth of {tier.name}", 1.0))
            for tier in cluster.tiers
        ),
        overhead_seconds=values.get("overhead seconds", cluster.overhead_seconds),
    )
