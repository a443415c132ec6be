"""Devices, nodes and the network between them: what trials run on, and what an exchange between them takes."""

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.costs.collectives import collective_seconds
from trainwright.cluster.costs.contention import contention
from trainwright.cluster.device import Device, DeviceFailures, Storage
from trainwright.cluster.network import ExchangeTimes, NetworkLevel
from trainwright.cluster.presets.catalogue import PRESETS

__all__ = [
    "PRESETS",
    "Cluster",
    "Device",
    "DeviceFailures",
    "ExchangeTimes",
    "NetworkLevel",
    "Storage",
    "collective_seconds",
    "contention",
]
