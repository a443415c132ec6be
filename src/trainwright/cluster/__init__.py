"""Devices, nodes and the network between them: what trials run on, and what an exchange between them takes."""

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.costs.collectives import Cost, collective_candidates, collective_seconds, collective_times
from trainwright.cluster.costs.contention import contention, ring_contention
from trainwright.cluster.device import Device, Failure, Storage
from trainwright.cluster.network import ExchangeTimes, Tier
from trainwright.cluster.operation import ALGORITHMS, OPERATIONS, Operation
from trainwright.cluster.placement import axis_groups, group_tier, groups, stride_of
from trainwright.cluster.presets import PRESETS

__all__ = [
    "ALGORITHMS",
    "OPERATIONS",
    "PRESETS",
    "Cluster",
    "Cost",
    "Device",
    "ExchangeTimes",
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
