"""Cluster: so many nodes of so many devices."""

from dataclasses import dataclass

from trainwright.errors import InputError

__all__ = ["Cluster"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` equal nodes with `devices_per_node` devices each."""

    nodes: int = 1
    devices_per_node: int = 1

    def __post_init__(self) -> None:
        for name in ("nodes", "devices_per_node"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"Cluster.{name}: got {value!r}; allowed: a whole number >= 1")

    @property
    def devices(self) -> int:
        """All devices."""
        return self.nodes * self.devices_per_node
