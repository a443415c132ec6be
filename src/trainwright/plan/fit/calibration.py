"""Calibration of a cluster from measured training steps, by the same forecasts that users are given.

A cluster's figures are multiplied by factors, one for the speed of computation and one for the bandwidth of each level
of the network, and get seconds of overhead an iteration; robust least squares finds them. What the fit leaves over
becomes the relative error that intervals are made of. Factors without influence on the measured steps are left out:
computation, for instance, where the profile's layers were timed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.profile import Profile
from trainwright.plan.fit.least_squares import ConstantFit, FitConstant, Floats, checked_seconds, fit_constants
from trainwright.plan.layout import Layout

__all__ = ["MeasuredRun", "calibrate_cluster"]

_LARGEST_FACTOR = 20.0
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
) -> tuple[Cluster, ConstantFit]:
    """Return the cluster with the figures for which `predict` comes closest to the runs' seconds, and the fit.

    Raises `InputError` unless there are more runs than factors that they determine.
    """
    seconds = checked_seconds([run.seconds for run in runs])

    def predict_all(values: Mapping[str, float]) -> Floats:
        changed = _with_factors(cluster, values)
        return np.array([predict(changed, run) for run in runs])

    constants = [constant for constant in _constants(cluster, seconds) if _influences(constant, predict_all)]
    if len(runs) <= len(constants):
        names = ", ".join(constant.name for constant in constants)
        raise InputError(f"runs: got {len(runs)}; allowed: more than the {len(constants)} figures to fit ({names})")
    fit = fit_constants(constants, predict_all, seconds, starts=1)
    # Each fitted figure takes one degree of freedom from the residuals.
    error = math.sqrt(float(np.square(fit.residuals).sum()) / (len(runs) - len(constants)))
    parts = ("compute", "framework", *(tier.name for tier in cluster.tiers))
    fitted = replace(
        _with_factors(cluster, fit.values),
        verified=True,
        errors={**cluster.errors, **dict.fromkeys(parts, error)},
        conditions={**cluster.conditions, "fitted": f"to {len(runs)} measured training steps"},
    )
    return fitted, fit


def _constants(cluster: Cluster, seconds: Floats) -> list[FitConstant]:
    typical = float(np.median(seconds))
    factors = ["compute", *(f"bandwidth of {tier.name}" for tier in cluster.tiers)]
    known = min(max(cluster.overhead_seconds, typical * 1e-3), typical)
    return [
        *(FitConstant(name=name, start=1.0, low=1 / _LARGEST_FACTOR, high=_LARGEST_FACTOR) for name in factors),
        FitConstant(name="overhead seconds", start=known, low=typical * 1e-6, high=typical * 2),
    ]


def _influences(constant: FitConstant, predict_all: Callable[[Mapping[str, float]], Floats]) -> bool:
    """Return whether halving one figure alone changes some prediction."""
    before, after = (predict_all({constant.name: constant.start * factor}) for factor in (1.0, 0.5))
    # Seconds of overhead start so low that half of them may not be seen; every run has them.
    return constant.name == "overhead seconds" or bool((np.abs(after / before - 1) > _INFLUENCE).any())


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
