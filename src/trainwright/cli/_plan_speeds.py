"""Speeds of a plan in the words that training runs are compared by: samples and tokens a second, TFLOP/s, MFU."""

import math
from typing import Any

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.profile import Profile
from trainwright.plan import Forecast
from trainwright.plan.parallel.precision import precision_of

__all__ = ["SpeedOf"]


class SpeedOf:
    """Speeds of the plans of one model on one cluster.

    MFU counts the operations of the model itself, not those of recomputation, and takes the device's peak in the
    precision of the activations.
    """

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        self._cluster = cluster
        work = sum(layer.forward_flops + layer.backward_flops for layer in profile.layers)
        self._flops = work / profile.batch
        # A sample of a transformer is a sequence of tokens.
        self._positions = max((block.transformer.sequence for block in profile.blocks if block.transformer), default=0)

    def columns(self, plan: Forecast) -> dict[str, str]:
        """Return a plan's speeds as text, by the names of their columns."""
        found = self.describe(plan)
        tokens, share = found["tokens_per_second"], found["mfu"]
        speeds = {"samples/s": found["samples_per_second"]}
        if tokens is not None:
            speeds = {"tokens/s": tokens, "tokens/s a device": tokens / plan.devices}
        return {
            **{name: f"{speed:.3g}" if speed < 1e4 else f"{speed:,.0f}" for name, speed in speeds.items()},
            "TFLOP/s a device": f"{found['tflops_per_device']:.3g}",
            "MFU": "-" if share is None else f"{100 * share:.0f} %",
        }

    def describe(self, plan: Forecast) -> dict[str, Any]:
        """Return a plan's speeds by name; None for what the model or the device does not say."""
        rate = plan.batch / plan.seconds_per_iteration
        speed = rate * self._flops / plan.devices
        # Without a measured or published peak there is no share of it.
        peak = self._cluster.device.flops.get(precision_of(plan.precision).flops)
        return {
            "samples_per_second": rate,
            "tokens_per_second": rate * self._positions if self._positions else None,
            "tflops_per_device": speed / 1e12,
            "mfu": speed / peak if peak else None,
        }

    def samples_of(self, tokens: float) -> int:
        """Return how many samples have so many tokens."""
        if not self._positions:
            raise InputError("--tokens: got a model whose samples are no sequences; allowed: --samples")
        return math.ceil(tokens / self._positions)
