"""What a fit must beat: constant seconds, and a constant share of the devices' peak."""

from collections.abc import Sequence

import numpy as np

from trainwright.cluster import Cluster
from trainwright.plan.fit.measured_run import MeasuredRun
from trainwright.plan.parallel.mesh import Floats
from trainwright.plan.parallel.precision import precision_of
from trainwright.plan.parallel.roofline import peak_flops

__all__ = ["constant_mfu_seconds", "constant_seconds", "peak_seconds"]


def constant_seconds(runs: Sequence[MeasuredRun], others: Sequence[MeasuredRun]) -> Floats:
    """Return for each of the others the geometric mean of the measured seconds."""
    seconds: Floats = np.full(len(others), np.exp(np.log([run.seconds for run in runs]).mean()))
    return seconds


def constant_mfu_seconds(cluster: Cluster, runs: Sequence[MeasuredRun], others: Sequence[MeasuredRun]) -> Floats:
    """Return what each of the others takes at the mean share of the peak (MFU) that the measured runs reached."""
    share = np.exp(np.mean([np.log(peak_seconds(cluster, run) / run.seconds) for run in runs]))
    seconds: Floats = np.array([peak_seconds(cluster, run) for run in others]) / share
    return seconds


def peak_seconds(cluster: Cluster, run: MeasuredRun) -> float:
    """Return what the model's own operations would take at the devices' peak."""
    return run.model_flops / (peak_flops(cluster, precision_of(run.layout.precision)) * run.layout.devices)
