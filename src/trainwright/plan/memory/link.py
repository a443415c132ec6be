"""Link: how fast bytes go from the device to the host and back, alone and both ways at once."""

from dataclasses import dataclass

from trainwright.errors import ChainError
from trainwright.validators import Validator, check, optional

__all__ = ["Link"]

_BANDWIDTH = Validator(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value > 0, "bytes per second > 0"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Bandwidths in bytes per second; what is measured with both directions busy may be less than alone."""

    to_host: float
    to_device: float
    to_host_together: float | None = None
    """None: as fast as alone (full duplex)."""
    to_device_together: float | None = None

    def __post_init__(self) -> None:
        for name in ("to_host", "to_device"):
            check(getattr(self, name), _BANDWIDTH, f"Link.{name}", ChainError)
            check(getattr(self, f"{name}_together"), optional(_BANDWIDTH), f"Link.{name}_together", ChainError)

    @classmethod
    def of(cls, bandwidth: "float | Link") -> "Link":
        """Return a link as fast in both directions as `bandwidth` says, in bytes per second."""
        return bandwidth if isinstance(bandwidth, Link) else cls(to_host=bandwidth, to_device=bandwidth)

    def rates(self, *, outgoing: bool, incoming: bool) -> tuple[float, float]:
        """Return the rates to the host and to the device, given which directions are busy."""
        if not (outgoing and incoming):
            return self.to_host, self.to_device
        return self.to_host_together or self.to_host, self.to_device_together or self.to_device
