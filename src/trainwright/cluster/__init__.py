"""Devices, nodes and the network between them: what trials run on."""

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.device import Device, Failure, Storage
from trainwright.cluster.tier import Tier

__all__ = ["Cluster", "Device", "Failure", "Storage", "Tier"]
