"""Placement: which ranks form the groups of an axis, which level of the network joins a group, and what they share.

Ranks are laid out with the first degree changing fastest, so that the ranks of an axis differ by the product of the
degrees before it, its stride. Rank r is on node r // devices_per_node, and in group r // tier.devices of each level.

Contention: every group is a ring in the order of its ranks. All rings are laid on the topology: a node's uplinks, then
the uplinks of each switch level. A flow that leaves a node, or a level's group of nodes, loads the links that join it
to the level above: in each direction `links_per_node` for each node below, divided by the oversubscription above.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.network import NetworkLevel
from trainwright.errors import InputError

__all__ = ["contention", "group_tier", "groups"]

_Boundaries = tuple[tuple[int, float], ...]


def groups(devices: int, *, ranks: int, stride: int = 1) -> NDArray[np.int64]:
    """Return the groups of `ranks` ranks `stride` apart into which `devices` ranks fall, one in a row.

    Raises `InputError` if they do not fall into such groups.
    """
    if min(devices, ranks, stride) < 1 or devices % (ranks * stride):
        raise InputError(
            f"groups: got {ranks} ranks with stride {stride} on {devices} devices; "
            f"allowed: whole numbers >= 1, devices a multiple of {max(1, ranks) * max(1, stride)}"
        )
    # Blocks of ranks * stride devices; in each, the members of a group are a column of the (ranks, stride) table.
    return np.arange(devices).reshape(-1, ranks, stride).swapaxes(1, 2).reshape(-1, ranks)


def group_tier(cluster: Cluster, *, ranks: int, stride: int = 1, devices: int | None = None) -> NetworkLevel:
    """Return the smallest level of the network that joins every such group (the widest of them, if they differ).

    `devices` is how many the job uses, at least one block of ranks * stride (the default): the groups of a later block
    may lie otherwise across nodes. Raises `InputError` if the cluster has too few devices or no level joins the group.
    """
    devices = _check_group(cluster, ranks=ranks, stride=stride, devices=devices)
    level = _first_joining_level(tuple(tier.devices for tier in cluster.tiers), ranks, stride, devices)
    if level == len(cluster.tiers):
        raise InputError(
            f"cluster {cluster.name!r}: no tier joins {ranks} ranks with stride {stride}; allowed: groups within "
            f"{cluster.tiers[-1].devices if cluster.tiers else 1} devices; add a tier to the cluster's file"
        )
    return cluster.tiers[level]


def _check_group(cluster: Cluster, *, ranks: int, stride: int, devices: int | None) -> int:
    """Return the devices of the job; raises `InputError` if they are no whole blocks or more than there are."""
    block = ranks * stride
    used = block if devices is None else devices
    if min(ranks, stride) < 1 or used % block or not block <= used <= cluster.devices:
        raise InputError(
            f"cluster {cluster.name!r}: got groups of {ranks} ranks with stride {stride} on {used} devices; allowed: "
            f"whole numbers >= 1, devices a multiple of ranks * stride and at most {cluster.devices}"
        )
    return used


@lru_cache(maxsize=4096)
def _first_joining_level(sizes: tuple[int, ...], ranks: int, stride: int, devices: int) -> int:
    rows = groups(devices, ranks=ranks, stride=stride)
    # Members rise within a group, so a level joins it if it joins the first and the last.
    first, last = rows[:, 0], rows[:, -1]
    return next((level for level, size in enumerate(sizes) if np.all(first // size == last // size)), len(sizes))


def contention(cluster: Cluster, *, ranks: int, stride: int = 1, devices: int | None = None) -> float:
    """Return phi >= 1 for the groups of `ranks` ranks `stride` apart that are active at once: beta times phi.

    `devices` is how many the job uses; by default one block of ranks * stride, which has `stride` groups.
    """
    used = _check_group(cluster, ranks=ranks, stride=stride, devices=devices)
    return _regular_contention(_level_boundaries(cluster), ranks, stride, used)


def _level_boundaries(cluster: Cluster) -> _Boundaries:
    """Return (devices below, parallel links up) from the node outwards."""
    # Links inside a node are per pair of devices: no two groups share them.
    outer = [tier for tier in cluster.tiers if tier.devices > cluster.devices_per_node]
    below = [cluster.devices_per_node, *(tier.devices for tier in outer)]
    # Of the links below, oversubscription leaves only a part to what goes up.
    return tuple(
        (inside, inside / cluster.devices_per_node * tier.links_per_node / tier.oversubscription)
        for inside, tier in zip(below, outer, strict=False)
    )


@lru_cache(maxsize=4096)
def _regular_contention(boundaries: _Boundaries, ranks: int, stride: int, devices: int) -> float:
    return _highest_load(boundaries, groups(devices, ranks=ranks, stride=stride))


def _highest_load(boundaries: _Boundaries, rings: NDArray[np.int64]) -> float:
    # A group of one rank sends nothing.
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
