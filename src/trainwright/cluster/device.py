"""Device: what one accelerator can do; Storage: how fast files come and go; Failure: how often a device dies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.cluster._checks import at_least, each_positive, positive, refuse, whole

__all__ = ["Device", "Failure", "Storage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One accelerator (or one process's share of a processor)."""

    kind: str = "unknown"
    memory_bytes: int = 0
    """0: not known, and nothing is refused for its size."""
    flops: Mapping[str, float] = field(default_factory=dict)
    """Peak operations a second by precision (fp32, tf32, fp16, bf16, fp8); a multiply-add counts as two."""
    memory_bandwidth: float = 0.0
    """Bytes a second between the device and its own memory."""
    launch_seconds: float = 0.0
    """Fixed seconds of a kernel."""
    host_bandwidth: float = 0.0
    """Bytes a second between host and device, 0 if they share memory."""
    efficiency: Mapping[str, float] = field(default_factory=dict)
    """Share of the peak that a kind of layer reaches, 0 to 1, where it was measured."""

    def __post_init__(self) -> None:
        whole("Device.memory_bytes", self.memory_bytes, least=0)
        each_positive("Device.flops", self.flops)
        for name in ("memory_bandwidth", "launch_seconds", "host_bandwidth"):
            at_least(f"Device.{name}", getattr(self, name))
        for kind, share in self.efficiency.items():
            if not 0 < share <= 1:
                raise refuse(f"Device.efficiency.{kind}", share, "a number > 0 and <= 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Bytes a second, 0 where nothing is known; `shared_read` and `write` are caps of the whole job."""

    node_read: float = 0.0
    shared_read: float = 0.0
    write: float = 0.0
    file_seconds: float = 0.0
    """Seconds that a small file takes beyond its bytes."""

    def __post_init__(self) -> None:
        for name in ("node_read", "shared_read", "write", "file_seconds"):
            at_least(f"Storage.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Mean hours between failures of one device, infinite if it never fails."""

    device_mtbf_hours: float = float("inf")

    def __post_init__(self) -> None:
        positive("Failure.device_mtbf_hours", self.device_mtbf_hours)
