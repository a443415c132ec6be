"""Describes the network between devices: its levels (latency, bandwidth), and measured times of exchanges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.settings import Settings
from trainwright.validators import check, integer, number, one_of

__all__ = ["ALGORITHMS", "OPERATIONS", "ExchangeTimes", "NetworkLevel", "Operation"]

Operation = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

ALGORITHMS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "all_reduce": ("ring", "tree", "hierarchical"),
    "reduce_scatter": ("ring", "hierarchical"),
    "all_gather": ("ring", "hierarchical"),
    "all_to_all": ("pairwise",),
    "broadcast": ("tree",),
    "send": ("direct",),
})  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkLevel(Settings):
    """Groups of up to `devices` devices: `alpha` seconds a message, `bandwidth` bytes a second on one link."""

    name: str
    devices: Annotated[int, integer(minimum=1)]
    alpha: Annotated[float, number(minimum=0)]
    bandwidth: Annotated[float, number(above=0)]
    reached: Annotated[float, number(above=0, maximum=1)] = 1.0
    """Share of the bandwidth that exchanges come to."""
    links_per_node: Annotated[int, integer(minimum=1)] = 1
    oversubscription: Annotated[float, number(minimum=1)] = 1.0
    """How many times more traffic may enter this level than it can carry: 3 for a 1:3 tree."""
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """The algorithm of an operation ("all_reduce": "ring") where it is known; otherwise the cheapest is used."""
    worlds: tuple[int, ...] = ()
    """The only group sizes for which the figures hold; empty: any size."""

    def check_together(self) -> None:
        """Check the names of algorithms and the sizes of groups, so that an error names the entry."""
        for operation, algorithm in self.algorithms.items():
            where = f"NetworkLevel.algorithms.{operation}"
            check(operation, one_of(*OPERATIONS), where)
            check(algorithm, one_of(*ALGORITHMS[operation]), where)
        for place, ranks in enumerate(self.worlds):
            check(ranks, integer(minimum=2), f"NetworkLevel.worlds[{place}]")

    @property
    def beta(self) -> float:
        """Seconds a byte on one link."""
        return 1.0 / (self.bandwidth * self.reached)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeTimes(Settings):
    """Measured seconds of one operation among `ranks` ranks of a level, by the bytes of the whole message."""

    operation: Annotated[str, one_of(*OPERATIONS)]
    tier: str
    ranks: Annotated[int, integer(minimum=2)]
    on_node: Annotated[int, integer(minimum=0)] = 0
    """How many of these ranks share a node; 0: the times hold for any number."""
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    def check_together(self) -> None:
        """Check that there is one time above 0 for each of the rising sizes."""
        if not self.bytes or len(self.bytes) != len(self.seconds):
            raise InputError(
                f"ExchangeTimes.seconds: got {self.seconds!r}; "
                f"allowed: as many numbers as bytes ({len(self.bytes)}, >= 1)"
            )
        # Sizes must rise, because times are interpolated between two of them.
        least = 1
        for place, (size, seconds) in enumerate(zip(self.bytes, self.seconds, strict=True)):
            check(size, integer(minimum=least), f"ExchangeTimes.bytes[{place}]")
            check(seconds, number(above=0), f"ExchangeTimes.seconds[{place}]")
            least = size + 1

    def matches(self, operation: str, tier: str, ranks: int, on_node: int) -> bool:
        """Return whether these are the times of that exchange, in a group of which `on_node` ranks share a node."""
        return (self.operation, self.tier, self.ranks) == (operation, tier, ranks) and self.on_node in {0, on_node}

    def at(self, size: float | NDArray[np.float64], flows: float = 1.0) -> float | NDArray[np.float64]:
        """Return seconds of messages of other sizes, or where `flows` groups share a link.

        Between two measured sizes: linear in both logarithms. Below the smallest size: its time. Above the largest: in
        proportion to the size. The time above the shortest of all is bandwidth, and is multiplied by `flows`.
        """
        # Times that fall with the size are noise: a running maximum makes them monotone.
        sizes, seconds = np.asarray(self.bytes, dtype=np.float64), np.maximum.accumulate(self.seconds)
        inside = np.clip(size, sizes[0], sizes[-1])
        # Linear in both logarithms between measured sizes; in proportion to the size beyond the largest.
        found = np.exp(np.interp(np.log(inside), np.log(sizes), np.log(seconds))) * np.maximum(1.0, size / sizes[-1])
        # What the smallest message takes is latency, which does not change when groups share a link.
        shared = seconds[0] + (found - seconds[0]) * flows
        return shared if isinstance(size, np.ndarray) else float(shared)
