"""Contention: how many times slower a link is because all groups of an axis communicate at the same time.

Every group is a ring in the order of its ranks. All rings are laid on the topology: a node's uplinks, then the uplinks
of each switch level. A flow that leaves a node, or a level's group of nodes, loads the links that join it to the level
above: in each direction `links_per_node` for each node below, divided by the oversubscription of the level above.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.placement import check_group, groups

__all__ = ["contention", "ring_contention"]

_Boundaries = tuple[tuple[int, float], ...]


def contention(cluster: Cluster, *, ranks: int, stride: int = 1, devices: int | None = None) -> float:
    """Return phi >= 1 for the groups of `ranks` ranks `stride` apart that are active at once: beta times phi.

    `devices` is how many the job uses; by default one block of ranks * stride, which has `stride` groups.
    """
    used = check_group(cluster, ranks=ranks, stride=stride, devices=devices)
    return _regular_contention(_level_boundaries(cluster), ranks, stride, used)


def ring_contention(cluster: Cluster, rings: NDArray[np.int64]) -> float:
    """Return phi for rings of any ranks, one in a row: the highest load of a link in one step, 1 if none is shared."""
    return _highest_load(_level_boundaries(cluster), rings)


def _level_boundaries(cluster: Cluster) -> _Boundaries:
    """Return (devices below, parallel links up) from the node outwards."""
    # Links inside a node are per pair of devices: no two groups share them.
    outer = [tier for tier in cluster.tiers if tier.devices > cluster.devices_per_node]
    below = [cluster.devices_per_node, *(tier.devices for tier in outer)]
    return tuple(
        (inside, inside / cluster.devices_per_node * tier.links_per_node / tier.oversubscription)
        for inside, tier in zip(below, outer, strict=False)
    )


@lru_cache(maxsize=4096)
def _regular_contention(boundaries: _Boundaries, ranks: int, stride: int, devices: int) -> float:
    return _highest_load(boundaries, groups(devices, ranks=ranks, stride=stride))


def _highest_load(boundaries: _Boundaries, rings: NDArray[np.int64]) -> float:
    if rings.shape[1] < 2:
        return 1.0
    # In one step of a ring every rank sends to the next.
    sender, receiver = rings.ravel(), np.roll(rings, -1, axis=1).ravel()
    highest = 1.0
    for inside, links in boundaries:
        # Numbers of the blocks (node or switch) that sender and receiver belong to.
        source, target = sender // inside, receiver // inside
        crossing = source != target
        if not crossing.any():
            break  # what stays inside this level stays inside those above
        # The busiest block decides: flows out of it or into it, over its parallel links.
        load = max(np.bincount(source[crossing]).max(), np.bincount(target[crossing]).max())
        highest = max(highest, float(load) / links)
    return highest
