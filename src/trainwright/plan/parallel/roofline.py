"""Predicts the seconds of a layer on a device: as measured, else by the roofline model."""

import numpy as np

from trainwright.cluster import Cluster
from trainwright.cluster.device import roofline_seconds
from trainwright.errors import InputError
from trainwright.model.layer import Layer
from trainwright.plan.parallel.mesh import Bools, Floats
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import Precision

__all__ = [
    "framework_seconds",
    "host_seconds",
    "launch_counts",
    "layer_seconds",
    "peak_flops",
]


_IN_TURN = frozenset({"linear", "attention"})
_CAST_BYTES = 5
"""An element of an operand: read in two bytes for its greatest value, read again, and written in one."""


def peak_flops(cluster: Cluster, precision: Precision) -> float:
    """Return the most operations a second that a device does in a precision; raises `InputError` if it is not known."""
    return _peak(cluster, precision.products or precision.flops)


def _peak(cluster: Cluster, wanted: str) -> float:
    known = cluster.device.flops
    if wanted == "fp8" and wanted not in known:
        raise InputError(f"cluster {cluster.name!r}: device.flops has no fp8; allowed: a device that has, or amp-bf16")
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
    arrays: ModelArrays, cluster: Cluster, *, samples: Floats, share: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of `share` of each layer on `samples` samples: (candidates, layers).

    `weights` is the share of the layer's weights that is read. Times of a measured layer are read off those of the
    batches that were measured.
    """
    # Measured layers take their measured times, all others the roofline.
    measured = np.array([layer.forward_seconds is not None for layer in arrays.layers])
    forward = _roofline(arrays, cluster, samples=samples, share=share, weights=weights, backward=False)
    backward = _roofline(arrays, cluster, samples=samples, share=share, weights=weights, backward=True)
    if measured.any():
        batches = arrays.profile.smaller_batches
        different, place = np.unique(samples, return_inverse=True)
        ahead, back = (
            np.stack([_at(different, arrays.profile.batch, batches, *times) for times in both], axis=1)[place]
            for both in zip(*(_times(layer) for layer in arrays.layers), strict=True)
        )
        forward, backward = np.where(measured, share * ahead, forward), np.where(measured, share * back, backward)
    return forward, backward


def framework_seconds(arrays: ModelArrays, samples: Floats) -> Floats:
    """Return the seconds beyond its layers' of a pass of the whole model over so many samples, and back."""
    profile, whole = arrays.profile, arrays.profile.framework_seconds
    if profile.smaller_batches:
        return _at(samples, profile.batch, profile.smaller_batches, whole, profile.smaller_framework_seconds)
    found: Floats = np.maximum(whole, whole * samples / profile.batch)  # launching takes as long for fewer samples
    return found


def _times(layer: Layer) -> tuple[tuple[float, tuple[float, ...]], tuple[float, tuple[float, ...]]]:
    return (
        (layer.forward_seconds or 0.0, layer.smaller_forward_seconds),
        (layer.backward_seconds or 0.0, layer.smaller_backward_seconds),
    )


def _at(samples: Floats, batch: int, smaller: tuple[int, ...], seconds: float, less: tuple[float, ...]) -> Floats:
    """Return the seconds of so many samples: on straight lines between the batches measured, else in proportion."""
    if len(less) != len(smaller) or not less:
        return seconds * samples / batch
    # `interp` stays level beyond the largest batch measured: from there on in proportion.
    found: Floats = np.interp(samples, (*smaller, batch), (*less, seconds)) * np.maximum(1.0, samples / batch)
    return found


def launch_counts(arrays: ModelArrays) -> Floats:
    """Return the launches in a forward pass of each layer that was not timed; a backward pass has twice as many."""
    unmeasured = np.array([layer.forward_seconds is None for layer in arrays.layers])
    found: Floats = np.where(unmeasured, arrays.launches, 0.0)
    return found


def host_seconds(arrays: ModelArrays, cluster: Cluster, chosen: Bools) -> Floats:
    """Return the seconds that the host takes to issue a forward pass of the chosen layers of each block.

    Of layers that were timed it is in their seconds.
    """
    return arrays.per_block(np.where(chosen, launch_counts(arrays) * cluster.device.host_seconds, 0.0))


def _roofline(
    arrays: ModelArrays,
    cluster: Cluster,
    *,
    samples: Floats,
    share: Floats,
    weights: Floats,
    backward: bool,
) -> Floats:
    device = cluster.device
    kinds = [layer.kind for layer in arrays.layers]
    reached = np.array([device.reached(kind) for kind in kinds])
    flops, moved, passes = (
        (arrays.backward_flops, arrays.backward_bytes, 2)
        if backward
        else (arrays.forward_flops, arrays.forward_bytes, 1)
    )
    read = passes * weights * arrays.weights * arrays.precision.weight_bytes
    rate, bandwidth = _peak(cluster, arrays.precision.flops) * reached, device.reached_bandwidth
    fixed = passes * launch_counts(arrays) * device.launch_seconds
    # Products at a byte an element: their operands are cast first, which moves memory.
    if arrays.precision.products:
        cast = np.array([layer.kind == "linear" for layer in arrays.layers]) & arrays.inside
        rate = np.where(cast, _peak(cluster, arrays.precision.products) * device.reached("fp8"), rate)
        operands = arrays.inputs + (arrays.outputs if backward else 0)
        elements = np.where(cast, samples[:, None] * share * operands + weights * arrays.weights, 0.0)
        fixed = fixed + (elements * _CAST_BYTES / bandwidth if bandwidth else 0.0)
    if device.product_flops:
        # A product of few operations runs as long as one of more; experts have a product each.
        products = np.array([max(1, layer.experts) * (layer.kind == "linear") for layer in arrays.layers])
        count = np.where(products > 1, np.maximum(1.0, products * weights), products)
        fixed = fixed + passes * count * device.product_flops / rate
    # The loss reaches a share of its own of the bandwidth.
    slower = device.reached("loss") / device.reached("memory")
    moved = moved / np.where([kind == "loss" for kind in kinds], slower, 1.0)
    work, traffic = samples[:, None] * share * flops, samples[:, None] * share * moved + read
    found = roofline_seconds(work, traffic, rate=rate, bandwidth=bandwidth, fixed_seconds=fixed)
    # A product reads and writes its operands before and after its arithmetic, tile by tile: the times add up.
    both = np.array([kind in _IN_TURN for kind in kinds])
    return np.where(both, work / rate + (traffic / bandwidth if bandwidth else 0.0) + fixed, found)
