"""Link: how fast bytes go from the device to the host and back, alone and both ways at once."""

import math
from dataclasses import dataclass

from trainwright.errors import ChainError

__all__ = ["Link"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Bandwidths in bytes per second; what is measured with both directions busy may be less than alone."""

    to_host: float
    to_device: float
    to_host_together: float | None = None
    """None: as fast as alone (full duplex)."""
    to_device_together: float | None = None

    def __post_init__(self) -> None:
        for name in ("to_host", "to_device", "to_host_together", "to_device_together"):
            value = getattr(self, name)
            if value is None and name.endswith("together"):
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or math.isnan(value) or value <= 0:
                raise ChainError(f"Link.{name}: got {value!r}; allowed: bytes per second > 0")

    @classmethod
    def of(cls, bandwidth: "float | Link") -> "Link":
        """Return a link as fast in both directions as `bandwidth` says, in bytes per second."""
        return bandwidth if isinstance(bandwidth, Link) else cls(to_host=bandwidth, to_device=bandwidth)

    def rates(self, *, outgoing: bool, incoming: bool) -> tuple[float, float]:
        """Return the rates to the host and to the device, given which directions are busy."""
        if not (outgoing and incoming):
            return self.to_host, self.to_device
        return self.to_host_together or self.to_host, self.to_device_together or self.to_device
