"""Devices, nodes and the network between them: what trials run on, and what an exchange between them takes."""

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.collectives import (
    OPERATIONS,
    Cost,
    Operation,
    collective_candidates,
    collective_seconds,
    collective_times,
)
from trainwright.cluster.contention import contention, ring_contention
from trainwright.cluster.device import Device, Failure, Storage
from trainwright.cluster.placement import axis_groups, group_tier, groups, stride_of
from trainwright.cluster.tier import Tier

__all__ = [
    "OPERATIONS",
    "Cluster",
    "Cost",
    "Device",
    "Failure",
    "Operation",
    "Storage",
    "Tier",
    "axis_groups",
    "collective_candidates",
    "collective_seconds",
    "collective_times",
    "contention",
    "group_tier",
    "groups",
    "ring_contention",
    "stride_of",
]
