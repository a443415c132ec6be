"""Devices and nodes: what trials run on."""

from trainwright.cluster.cluster import Cluster

__all__ = ["Cluster"]
