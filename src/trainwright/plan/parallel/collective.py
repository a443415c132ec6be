"""Collective: one exchange between devices that a strategy asks for; the list of them is what times derive from."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Collective", "Operation", "Phase"]

Operation = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"]
Phase = Literal["forward", "backward", "gradient", "update", "input"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """`count` exchanges of `bytes` bytes in an iteration, among the ranks that differ only in the degree `axis`.

    `bytes` is the whole message of one exchange (of an all-gather: what each rank ends with), not each rank's part.
    """

    operation: Operation
    axis: str
    """The degree whose ranks exchange: a field of `Degrees`."""
    bytes: int
    count: int
    phase: Phase
    layer: str = ""
    overlaps: bool = False
    """Whether computation of the same phase may hide it (gradient buckets, prefetched weights)."""
