"""Typical efficiency: the share of data-sheet figures that training reaches, and the host's overhead.

One set for all machines, as public runs of A100, H100, H200, B200, GB200 and GB300 had it; `benchmarks/plan` fits it,
and says how far presets err on machines and frameworks that it was not fitted to.
"""

from dataclasses import replace
from typing import Any

__all__ = ["AS_PUBLISHED", "add_typical"]

AS_PUBLISHED = frozenset({"abci-v100"})
"""Presets that stay as their publication used them."""
_EFFICIENCY = {"linear": 0.85, "attention": 0.38, "fp8": 0.95, "memory": 0.95, "loss": 0.95}
_HOST_SECONDS, _EXCHANGE_SECONDS, _OVERHEAD_SECONDS, _OVERLAP = 6e-6, 4e-5, 7e-3, 0.35
_PRODUCT_SECONDS = 7e-6
"""A product is half as efficient when it has as many operations as the device's peak does in that time."""
_REACHED = {"network": 0.75}
_REACHED_INSIDE = 0.5
"""Shares of the bandwidth between nodes, and inside one."""


def add_typical(content: dict[str, Any]) -> dict[str, Any]:
    """Return a cluster's fields with these constants."""
    device = content["device"]
    peak = device.flops.get("fp16", device.flops.get("fp32", 0.0))
    return {
        **content,
        "device": replace(
            device, efficiency=_EFFICIENCY, host_seconds=_HOST_SECONDS, product_flops=_PRODUCT_SECONDS * peak
        ),
        "tiers": tuple(replace(each, reached=_REACHED.get(each.name, _REACHED_INSIDE)) for each in content["tiers"]),
        "exchange_seconds": _EXCHANGE_SECONDS,
        "overhead_seconds": _OVERHEAD_SECONDS,
        "overlap": _OVERLAP,
    }
