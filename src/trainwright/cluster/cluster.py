"""Cluster: so many nodes of so many devices, the network between them, and what is known of its speed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.cluster.device import Device, Failure, Storage
from trainwright.cluster.tier import Tier
from trainwright.errors import InputError

__all__ = ["Cluster"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` equal nodes with `devices_per_node` devices each; rank = node * devices_per_node + place in the node.

    `tiers` are the levels of the network, the smallest first: the first joins the devices of a node (if a node has
    more than one). A cluster without tiers or without a device's speed can be counted and simulated on, but no
    time can be predicted for it.
    """

    nodes: int = 1
    devices_per_node: int = 1
    name: str = field(default="unnamed", kw_only=True)
    source: str = field(default="", kw_only=True)
    verified: bool = field(default=False, kw_only=True)
    """Whether the figures were measured on this cluster; if not, every table says "uncalibrated"."""
    device: Device = field(default_factory=Device, kw_only=True)
    tiers: tuple[Tier, ...] = field(default=(), kw_only=True)
    storage: Storage = field(default_factory=Storage, kw_only=True)
    failure: Failure = field(default_factory=Failure, kw_only=True)
    overhead_seconds: float = field(default=0.0, kw_only=True)
    """Framework seconds of an iteration that no layer explains."""
    errors: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """Relative error of the calibration by what was fitted ("compute", tier names, "storage"), for intervals."""

    def __post_init__(self) -> None:
        for name in ("nodes", "devices_per_node"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"Cluster.{name}: got {value!r}; allowed: a whole number >= 1")

    @property
    def devices(self) -> int:
        """All devices."""
        return self.nodes * self.devices_per_node
