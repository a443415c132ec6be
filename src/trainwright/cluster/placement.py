"""Places ranks on nodes: which form the groups of an axis, which network level joins them, and its contention.

Ranks are laid out with the first degree changing fastest, so that the ranks of an axis differ by the product of the
degrees before it, its stride. Rank r is on node r // devices_per_node, and in group r // tier.devices of each level.

Contention: every group is a ring in the order of its ranks. All rings are laid on the topology: a node's uplinks, then
the uplinks of each switch level. A flow that leaves a node, or a level's group of nodes, loads the links that join it
to the level above: in each direction `links_per_node` for each node below, divided by the oversubscription above.

Nodes that differ: the ranks of a job go in step, so that each counts as the slowest and smallest of them.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.network import NetworkLevel
from trainwright.errors import InputError

__all__ = ["EqualPart", "contention", "equal_parts", "group_tier", "groups"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualPart:
    """Some nodes of a cluster, each as good as the worst of them."""

    cluster: Cluster
    """As many equal nodes; of one with twice the devices of others there may be two."""
    bound_by: str
    """What its nodes have less of than the best of the cluster, and which of them: "" if nothing."""
    slots: tuple[int, ...]
    """The node of the cluster that each node is on, or is a part of."""

    def nodes(self, devices: int) -> tuple[int, ...]:
        """Return the nodes of the first devices."""
        return tuple(sorted(set(self.slots[: -(-devices // self.cluster.devices_per_node)])))


def equal_parts(cluster: Cluster) -> list[EqualPart]:
    """Return the sets of nodes of a cluster of different ones from which a job may choose, the largest first; else [].

    For each number of devices, speed, memory and bandwidth that some node has: all nodes that have as much.
    """
    sizes, speeds = zip(*cluster.node_shapes, strict=True)
    memory = cluster.node_memory_bytes or (cluster.device.memory_bytes,) * cluster.nodes
    links = cluster.node_links or (1.0,) * cluster.nodes
    kinds = list(zip(sizes, speeds, memory, links, strict=True))
    if len(set(kinds)) == 1:
        return []
    found: dict[tuple[int, tuple[int, ...]], None] = {}
    # Devices of a node may be halved, so that nodes of 8 and of 4 work together as nodes of 4.
    for least in itertools.product({*sizes, math.gcd(*sizes)}, set(speeds), set(memory), set(links)):
        nodes = tuple(n for n, kind in enumerate(kinds) if all(a >= b for a, b in zip(kind, least, strict=True)))
        found |= {(least[0], nodes): None} if nodes else {}
    parts = [_equal_part(cluster, kinds, size, nodes) for size, nodes in found]
    return sorted(parts, key=lambda part: -part.cluster.devices)


def _equal_part(cluster: Cluster, kinds: Sequence[tuple[float, ...]], size: int, nodes: Sequence[int]) -> EqualPart:
    slots = tuple(node for node in nodes for _ in range(int(kinds[node][0]) // size))
    worst = [min(nodes, key=lambda node: kinds[node][column]) for column in range(4)]
    speed, memory, link = (kinds[node][column] for column, node in enumerate(worst) if column)
    device = cluster.device
    slower = {name: speed * flops for name, flops in device.flops.items()}
    # A part of a node has as large a part of its links; racks are not what they were, so the last level joins all.
    share = size / cluster.devices_per_node
    inside = [replace(tier, devices=size) for tier in cluster.tiers if tier.devices <= cluster.devices_per_node][-1:]
    outside = [
        replace(
            tier,
            devices=len(slots) * size,
            bandwidth=tier.bandwidth * link * min(1.0, share * tier.links_per_node),
            links_per_node=max(1, math.floor(share * tier.links_per_node)),
        )
        for tier in cluster.tiers[-1:]
        if tier.devices > cluster.devices_per_node
    ]
    least = (size, speed, memory, link)
    words = (f"{size} devices a node", f"{speed:g} of the speed", f"{memory / 1e9:.4g} GB", f"{link:g} of the links")
    best = [max(column) for column in zip(*kinds, strict=True)]
    said = [f"{word} (node {worst[n]})" for n, word in enumerate(words) if least[n] < best[n]]
    return EqualPart(
        cluster=replace(
            cluster,
            nodes=len(slots),
            devices_per_node=size,
            device=replace(
                device, flops=slower, memory_bandwidth=speed * device.memory_bandwidth, memory_bytes=int(memory)
            ),
            tiers=(*(inside if size > 1 else ()), *(outside if len(slots) > 1 else ())),
            node_devices=(),
            node_speeds=(),
            node_memory_bytes=(),
            node_links=(),
        ),
        bound_by=", ".join(said),
        slots=slots,
    )
