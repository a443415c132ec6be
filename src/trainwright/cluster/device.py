"""Describes a machine's parts: a device's speed, its storage, its failure rate; and the roofline of its operations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.settings import Settings
from trainwright.validators import Validator, check, integer, number

__all__ = ["MOST_EFFICIENT", "Device", "DeviceFailures", "NodeShape", "Storage", "roofline_seconds"]

MOST_EFFICIENT = {"attention": 2.0}
"""Largest shares of the peak where they are not 1: attention with a causal mask does half of its operations."""
_USUAL = {"conv": 0.45, "linear": 0.6, "attention": 0.45, "fp8": 0.6, "memory": 0.8}
"""Shares of the peak, and of the memory's bandwidth, where nobody has measured them; 0.5 for other kinds of layer."""
_FINITE = number(above=0)
_POSITIVE_OR_INFINITE = Validator(lambda value: _FINITE.accepts(value) or value == math.inf, "a number > 0")


class NodeShape(NamedTuple):
    """A node as schedulers see it: its devices, and how fast they are relative to those of other nodes."""

    devices: int
    speed: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Device(Settings):
    """One accelerator (or one process's share of a processor)."""

    kind: str = "unknown"
    memory_bytes: Annotated[int, integer(minimum=0)] = 0
    """0: unknown, and no plan is refused for its size."""
    flops: Mapping[str, float] = field(default_factory=dict)
    """Peak operations a second by precision (fp32, tf32, fp16, bf16, fp8); a multiply-add counts as two."""
    memory_bandwidth: Annotated[float, number(minimum=0)] = 0.0
    """Bytes a second between the device and its own memory."""
    launch_seconds: Annotated[float, number(minimum=0)] = 0.0
    """Fixed seconds of a kernel."""
    host_seconds: Annotated[float, number(minimum=0)] = 0.0
    """Seconds that the host takes to issue an operation: where that is longer than the device's work, the device waits.
    0 where layers were timed, which holds it."""
    product_flops: Annotated[float, number(minimum=0)] = 0.0
    """Operations of a product at which it reaches half of its efficiency: small ones do not fill a device."""
    host_bandwidth: Annotated[float, number(minimum=0)] = 0.0
    """Bytes a second between host and device, 0 if they share memory."""
    efficiency: Mapping[str, float] = field(default_factory=dict)
    """Share of the peak that a kind of layer reaches, 0 to 1, where it was measured; "memory": of the bandwidth."""

    def reached(self, kind: str) -> float:
        """Return the share of the peak that a kind of layer reaches; of the bandwidth for "memory" and "loss"."""
        otherwise = self.reached("memory") if kind == "loss" else _USUAL.get(kind, 0.5)
        return self.efficiency.get(kind, otherwise)

    @property
    def reached_bandwidth(self) -> float:
        """Bytes a second that layers move, 0 where nobody knows."""
        return self.memory_bandwidth * self.reached("memory")

    def check_together(self) -> None:
        """Check the values of both mappings, so that an error names the key."""
        for precision, speed in self.flops.items():
            check(speed, _POSITIVE_OR_INFINITE, f"Device.flops.{precision}")
        for kind, share in self.efficiency.items():
            check(share, number(above=0, maximum=MOST_EFFICIENT.get(kind, 1)), f"Device.efficiency.{kind}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage(Settings):
    """Bytes a second, 0 where nothing is known; `shared_read` and `write` are caps of the whole job."""

    node_read: Annotated[float, number(minimum=0)] = 0.0
    shared_read: Annotated[float, number(minimum=0)] = 0.0
    write: Annotated[float, number(minimum=0)] = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFailures(Settings):
    """Mean hours between failures of one device, infinite if it never fails."""

    device_mtbf_hours: Annotated[float, _POSITIVE_OR_INFINITE] = float("inf")


def roofline_seconds(
    flops: Any, moved_bytes: Any, *, rate: Any, bandwidth: float, fixed_seconds: Any
) -> NDArray[np.float64]:
    """Return the seconds of each piece of work, numbers or arrays; traffic is free where `bandwidth` is 0 (unknown).

    max(flops / rate, bytes / bandwidth) + fixed (Williams, Waterman and Patterson, Communications of the ACM 52(4),
    2009), where `rate` is the share of the peak that the work reaches and `fixed` what its launches take.
    """
    arithmetic = flops / rate
    traffic = moved_bytes / bandwidth if bandwidth else np.zeros_like(arithmetic)
    seconds: NDArray[np.float64] = np.maximum(arithmetic, traffic) + fixed_seconds
    return seconds
