"""Devices, nodes and the network between them: what trials run on, and what an exchange between them takes."""

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.collectives import collective_seconds
from trainwright.cluster.device import Device
from trainwright.cluster.network import NetworkLevel
from trainwright.cluster.placement import contention

__all__ = ["Cluster", "Device", "NetworkLevel", "collective_seconds", "contention"]
