"""Operation: the kinds of exchange, and the algorithms that each can go by."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

__all__ = ["ALGORITHMS", "FSDP_UNIT", "OPERATIONS", "Operation"]

Operation = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

FSDP_UNIT = "fsdp_unit"
"""Measured beside them: all that FSDP does for weights of so many bytes that it gathers at a time, in a micro-batch."""

ALGORITHMS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "all_reduce": ("ring", "tree", "hierarchical"),
    "reduce_scatter": ("ring", "hierarchical"),
    "all_gather": ("ring", "hierarchical"),
    "all_to_all": ("pairwise",),
    "broadcast": ("tree",),
    "send": ("direct",),
})  # fmt: skip
