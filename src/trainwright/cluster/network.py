"""Tier: a level of the network, from the inside of a node to the whole cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainwright.cluster._checks import at_least, one_of, positive, refuse, whole
from trainwright.cluster.operation import ALGORITHMS, FSDP_UNIT, OPERATIONS

__all__ = ["ExchangeTimes", "Tier"]


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
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """The algorithm of an operation ("all_reduce": "ring") where it is known; else the cheapest is taken."""
    worlds: tuple[int, ...] = ()
    """The sizes of groups for which the figures hold and are not asked for others; empty: any."""

    def __post_init__(self) -> None:
        whole("Tier.devices", self.devices)
        at_least("Tier.alpha", self.alpha)
        positive("Tier.bandwidth", self.bandwidth)
        whole("Tier.links_per_node", self.links_per_node)
        at_least("Tier.oversubscription", self.oversubscription, 1.0)
        for operation, algorithm in self.algorithms.items():
            one_of(f"Tier.algorithms.{operation}", operation, OPERATIONS)
            one_of(f"Tier.algorithms.{operation}", algorithm, ALGORITHMS[operation])
        for place, ranks in enumerate(self.worlds):
            whole(f"Tier.worlds[{place}]", ranks, least=2)

    @property
    def beta(self) -> float:
        """Seconds a byte on one link."""
        return 1.0 / self.bandwidth


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeTimes:
    """Measured seconds of one operation among `ranks` ranks of a tier, by the bytes of the whole message."""

    operation: str
    tier: str
    ranks: int
    on_node: int = 0
    """How many of these ranks share a node; 0: any number, the times hold however they lie."""
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        one_of("ExchangeTimes.operation", self.operation, (*OPERATIONS, FSDP_UNIT))
        whole("ExchangeTimes.ranks", self.ranks, least=2)
        whole("ExchangeTimes.on_node", self.on_node, least=0)
        if not self.bytes or len(self.bytes) != len(self.seconds):
            raise refuse("ExchangeTimes.seconds", self.seconds, f"as many numbers as bytes ({len(self.bytes)}, >= 1)")
        for place, (size, seconds) in enumerate(zip(self.bytes, self.seconds, strict=True)):
            whole(f"ExchangeTimes.bytes[{place}]", size, least=self.bytes[place - 1] + 1 if place else 1)
            positive(f"ExchangeTimes.seconds[{place}]", seconds)

    def matches(self, operation: str, tier: str, ranks: int, on_node: int) -> bool:
        """Return whether these are the times of that exchange, among a group of which so many ranks share a node."""
        return (self.operation, self.tier, self.ranks) == (operation, tier, ranks) and self.on_node in {0, on_node}

    def at(self, size: float | NDArray[np.float64], flows: float = 1.0) -> float | NDArray[np.float64]:
        """Return seconds of messages of other sizes, or where `flows` groups share a link.

        Between two sizes on the straight line between their logarithms; below the least as long as the least; above
        the greatest in proportion. What a message takes beyond the shortest time of all is repeated for every flow.
        """
        sizes, seconds = np.asarray(self.bytes, dtype=np.float64), np.maximum.accumulate(self.seconds)
        inside = np.clip(size, sizes[0], sizes[-1])
        found = np.exp(np.interp(np.log(inside), np.log(sizes), np.log(seconds))) * np.maximum(1.0, size / sizes[-1])
        shared = seconds[0] + (found - seconds[0]) * flows
        return shared if isinstance(size, np.ndarray) else float(shared)
