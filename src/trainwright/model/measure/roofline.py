"""Seconds of a layer that was not measured, by the roofline.

Peak, bandwidth, launch and the share of the peak that a kind of layer reaches are the device's.
"""

from dataclasses import replace
from typing import TypeVar

from trainwright.cluster import Device
from trainwright.cluster.device import roofline_seconds
from trainwright.errors import ProfileError
from trainwright.model.layer import ELEMENT_BYTES, Layer, ProfileFields
from trainwright.validators import check, one_of

__all__ = ["predict_seconds"]

P = TypeVar("P", bound=ProfileFields)


def predict_seconds(profile: P, device: Device, *, precision: str | None = None) -> P:
    """Return a profile whose layers have seconds on `device`; measured ones keep theirs, others are of "roofline".

    `precision` is that of the step to predict, the profile's own if None; measured seconds hold for that one only, so
    another precision replaces them too.
    """
    wanted = profile.precision if precision is None else precision
    check(wanted, one_of(*ELEMENT_BYTES), "precision", ProfileError)
    # Mixed precision computes its products in the lower of its two precisions.
    rate = device.flops.get(wanted.removeprefix("amp-"), 0.0)
    if rate <= 0 or device.memory_bandwidth <= 0:
        known = ", ".join(device.flops) or "none"
        raise ProfileError(
            f"device {device.kind!r}: no time can be predicted for {wanted}; allowed: a device with bandwidth and "
            f"flops for that precision (it has {known}); calibrate it, or give both in the cluster file"
        )
    # Traffic was counted at the profile's precision; another one has larger or smaller elements.
    scale = ELEMENT_BYTES[wanted] / ELEMENT_BYTES.get(profile.precision, 4)

    def with_seconds(layer: Layer) -> Layer:
        if layer.origin == "measured" and wanted == profile.precision:
            return layer
        # Kinds of layers reach different shares of the peak, where a calibration has measured them.
        peak = rate * device.efficiency.get(layer.kind, 1.0)

        def seconds(flops: float, size: float, launches: int) -> float:
            fixed = launches * device.launch_seconds
            bandwidth = device.memory_bandwidth
            return float(roofline_seconds(flops, size * scale, rate=peak, bandwidth=bandwidth, fixed_seconds=fixed))

        return replace(
            layer,
            forward_seconds=seconds(layer.forward_flops, layer.forward_bytes, layer.launches),
            backward_seconds=seconds(layer.backward_flops, layer.backward_bytes, layer.backward_launches),
            origin="roofline",
        )

    blocks = tuple(replace(block, layers=tuple(map(with_seconds, block.layers))) for block in profile.blocks)
    return replace(profile, blocks=blocks, precision=wanted)
