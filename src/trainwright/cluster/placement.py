"""Placement: which ranks form the groups of an axis, and which level of the network joins a group.

Ranks are laid out with the first degree changing fastest, so that the ranks of an axis differ by the product of the
degrees before it, its stride. Rank r is on node r // devices_per_node, and in group r // tier.devices of each level.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.network import NetworkLevel
from trainwright.errors import InputError

__all__ = ["check_group", "group_tier", "groups", "stride_of"]


def stride_of(degrees: Sequence[int], axis: int) -> int:
    """Return by how much the ranks of a group of that axis differ: the product of the degrees that change faster."""
    return math.prod(degrees[:axis])


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
    devices = check_group(cluster, ranks=ranks, stride=stride, devices=devices)
    level = _first_joining_level(tuple(tier.devices for tier in cluster.tiers), ranks, stride, devices)
    if level == len(cluster.tiers):
        raise InputError(
            f"cluster {cluster.name!r}: no tier joins {ranks} ranks with stride {stride}; allowed: groups within "
            f"{cluster.tiers[-1].devices if cluster.tiers else 1} devices; add a tier to the cluster's file"
        )
    return cluster.tiers[level]


def check_group(cluster: Cluster, *, ranks: int, stride: int, devices: int | None) -> int:
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
