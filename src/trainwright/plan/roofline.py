"""Seconds of a layer's part on a device: as measured, else by the roofline."""

import numpy as np

from trainwright.cluster import Cluster
from trainwright.cluster.roofline import roofline_seconds
from trainwright.errors import InputError
from trainwright.plan.assumptions import Assumptions
from trainwright.plan.mesh import Floats
from trainwright.plan.work import Work

__all__ = ["device_flops", "launch_seconds", "layer_seconds"]


def device_flops(cluster: Cluster, work: Work) -> float:
    """Return the device's peak operations a second at the plan's precision; raises `InputError` if it is not known."""
    known = cluster.device.flops
    wanted = work.precision.flops
    names = (wanted, "fp16", "bf16") if wanted != "fp32" else ("fp32",)
    found = next((known[name] for name in names if name in known), None)
    if found is None and wanted != "fp32" and "fp32" in known:
        found = known["fp32"]  # a device without half precision computes at its only speed
    if found is None:
        raise InputError(
            f"cluster {cluster.name!r}: device.flops has no {wanted}; allowed: operations a second by precision, such "
            f'as flops = {{{wanted} = 15.7e12}}; take a preset, or run "trainwright plan calibrate"'
        )
    return float(found)


def layer_seconds(
    work: Work, cluster: Cluster, assumptions: Assumptions, *, samples: Floats, share: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of `share` of each layer on `samples` samples: (candidates, layers).

    `weights` is the share of the layer's weights that is read. Times of a measured layer are scaled from the batch
    that was measured; the whole share of `Assumptions` stays.
    """
    measured = np.array([layer.forward_seconds is not None for layer in work.layers])
    forward = _roofline(work, cluster, assumptions, samples=samples, share=share, weights=weights, backward=False)
    backward = _roofline(work, cluster, assumptions, samples=samples, share=share, weights=weights, backward=True)
    if measured.any():
        whole = np.array([assumptions.whole.get(layer.kind, 0.0) for layer in work.layers])
        part = np.where(share < 1, whole + (1 - whole) * share, 1.0) * samples[:, None] / work.profile.batch
        ahead = np.array([layer.forward_seconds or 0.0 for layer in work.layers])
        back = np.array([layer.backward_seconds or 0.0 for layer in work.layers])
        forward, backward = np.where(measured, part * ahead, forward), np.where(measured, part * back, backward)
    return forward, backward


def launch_seconds(work: Work, cluster: Cluster) -> Floats:
    """Return the launches' fixed seconds in a forward pass of each layer; a backward pass has twice as many."""
    unmeasured = np.array([layer.forward_seconds is None for layer in work.layers])
    found: Floats = np.where(unmeasured, work.launches * cluster.device.launch_seconds, 0.0)
    return found


def _roofline(
    work: Work,
    cluster: Cluster,
    assumptions: Assumptions,
    *,
    samples: Floats,
    share: Floats,
    weights: Floats,
    backward: bool,
) -> Floats:
    device = cluster.device
    kinds = [layer.kind for layer in work.layers]
    reached = np.array([device.efficiency.get(kind, assumptions.efficiency.get(kind, 0.5)) for kind in kinds])
    flops, moved, passes = (
        (work.backward_flops, work.backward_bytes, 2) if backward else (work.forward_flops, work.forward_bytes, 1)
    )
    read = passes * weights * work.weights * work.precision.weight_bytes
    return roofline_seconds(
        samples[:, None] * share * flops,
        samples[:, None] * share * moved + read,
        rate=device_flops(cluster, work) * reached,
        bandwidth=device.memory_bandwidth * assumptions.bandwidth,
        fixed_seconds=passes * launch_seconds(work, cluster),
    )
