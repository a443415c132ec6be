"""Tier: a level of the network, from the inside of a node to the whole cluster."""

from dataclasses import dataclass

__all__ = ["Tier"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """Groups of up to `devices` devices: `alpha` seconds a message, `bandwidth` bytes a second on one link."""

    name: str
    devices: int
    alpha: float
    bandwidth: float
    links_per_node: int = 1
    oversubscription: float = 1.0
    """How many times more traffic may enter this level than it can carry: 3 for a 1:3 tree."""

    @property
    def beta(self) -> float:
        """Seconds a byte on one link."""
        return 1.0 / self.bandwidth
