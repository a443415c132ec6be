"""Collectives: the seconds of an exchange among a group of a cluster's ranks, by the algorithm that takes least."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.costs.contention import contention
from trainwright.cluster.costs.hockney import Seconds, ring_seconds, send_seconds, tree_seconds
from trainwright.cluster.network import OPERATIONS, NetworkLevel, Operation
from trainwright.cluster.placement import group_tier
from trainwright.errors import InputError
from trainwright.validators import check, number, one_of

__all__ = ["CollectiveCost", "collective_candidates", "collective_seconds", "collective_times"]


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """What an exchange takes: seconds, the algorithm that takes least, and the level of the network that it crosses."""

    seconds: float
    algorithm: str
    """One of `ALGORITHMS`; "measured" for a time from a table, "none" for a group of one."""
    tier: str


def collective_seconds(
    cluster: Cluster,
    operation: Operation,
    bytes: float,  # noqa: A002 (the word of every record of an exchange)
    *,
    ranks: int,
    stride: int = 1,
    flows: float = 1.0,
) -> CollectiveCost:
    """Return the least cost of one exchange of `bytes` bytes among `ranks` ranks whose numbers differ by `stride`.

    `bytes` is the whole message, not each rank's part. `flows` is how many groups share a link (`contention`), 1 for a
    group that has the network to itself; it multiplies the seconds a byte. Times that were measured for such a group
    come before formulas. Raises `InputError` for values out of range, if no tier joins the group, and if its tier was
    measured for other sizes of group only.
    """
    found = _price_algorithms(cluster, operation, float(bytes), ranks=ranks, stride=stride, flows=flows)
    name = min(found, key=found.__getitem__)
    return CollectiveCost(float(found[name]), name, _level_of(cluster, ranks, stride).name if ranks > 1 else "")


def collective_times(
    cluster: Cluster, operation: Operation, sizes: ArrayLike, *, ranks: int, stride: int = 1, flows: float = 1.0
) -> NDArray[np.float64]:
    """Return the seconds of `collective_seconds` for an array of message sizes in bytes."""
    array = np.asarray(sizes, dtype=np.float64)
    found = _price_algorithms(cluster, operation, array, ranks=ranks, stride=stride, flows=flows)
    return np.array(functools.reduce(np.minimum, found.values()), dtype=np.float64)


def collective_candidates(
    cluster: Cluster,
    operation: Operation,
    bytes: float,  # noqa: A002 (the word of every record of an exchange)
    *,
    ranks: int,
    stride: int = 1,
    flows: float = 1.0,
) -> dict[str, float]:
    """Return the seconds of every algorithm that the group may use, by name."""
    found = _price_algorithms(cluster, operation, float(bytes), ranks=ranks, stride=stride, flows=flows)
    return {name: float(seconds) for name, seconds in found.items()}


def _price_algorithms(
    cluster: Cluster, operation: Operation, size: Seconds, *, ranks: int, stride: int, flows: float
) -> dict[str, Seconds]:
    check(operation, one_of(*OPERATIONS), "operation")
    if not np.all(np.greater_equal(size, 0)):
        raise InputError(f"bytes of {operation}: got {size!r}; allowed: numbers >= 0")
    check(flows, number(minimum=1), "flows")
    if ranks == 1:
        return {"none": size * 0.0}
    tier = _level_of(cluster, ranks, stride)
    # Measured times come first: no formula knows what the machine's library does.
    on_node = min(ranks, max(1, cluster.devices_per_node // stride))
    times = next((known for known in cluster.measured if known.matches(operation, tier.name, ranks, on_node)), None)
    if times is not None:
        return {"measured": times.at(size, flows)}
    # Processes that share processors slow each other down in a way that no formula extrapolates.
    if tier.worlds and ranks not in tier.worlds:
        raise InputError(
            f"cluster {cluster.name!r}, tier {tier.name!r}: got a group of {ranks} ranks; allowed: "
            f"{', '.join(map(str, tier.worlds))}, at which it was measured; what shared processors do with other sizes "
            f"cannot be told: calibrate with {ranks} ranks"
        )
    found = _by_formula(cluster, operation, size, ranks=ranks, stride=stride, flows=flows)
    # A level may name its library's algorithm; a group that cannot use it takes the cheapest.
    known = tier.algorithms.get(operation)
    return {known: found[known]} if known in found else found


def _by_formula(
    cluster: Cluster, operation: Operation, size: Seconds, *, ranks: int, stride: int, flows: float
) -> dict[str, Seconds]:
    tier = _level_of(cluster, ranks, stride)
    alpha, beta = tier.alpha, tier.beta * flows
    # Point-to-point and one-to-all operations have a single algorithm here.
    if operation == "send":
        return {"direct": send_seconds(size, alpha, beta)}
    if operation == "broadcast":
        return {"tree": tree_seconds(size, ranks, alpha, beta)}
    if operation == "all_to_all":
        return {"pairwise": ring_seconds(size, ranks, alpha, beta)}
    found = _price_flat(operation, size, ranks, alpha, beta)
    # With several ranks in each node, a reduction inside the node first lets one ring a device cross the network.
    inside = _ranks_per_node(cluster, ranks, stride)
    if inside > 1:
        near = _level_of(cluster, inside, stride)
        # As many rings cross the network as the group has ranks in a node, and share its links with those of others.
        far = tier.beta * max(flows, contention(cluster, ranks=ranks // inside, stride=inside * stride))
        outer = _price_flat(operation, size / inside, ranks // inside, alpha, far)
        # Inside the node every byte goes round, outside only each device's share.
        inner = _ring_passes(operation) * ring_seconds(size, inside, near.alpha, near.beta)
        found["hierarchical"] = inner + functools.reduce(np.minimum, outer.values())
    return found


def _price_flat(operation: Operation, size: Seconds, ranks: int, alpha: float, beta: float) -> dict[str, Seconds]:
    found = {"ring": _ring_passes(operation) * ring_seconds(size, ranks, alpha, beta)}
    if operation == "all_reduce":
        found["tree"] = 2 * tree_seconds(size, ranks, alpha, beta)
    return found


def _ring_passes(operation: Operation) -> int:
    """Return how often the message goes round: an all-reduce is a reduce-scatter and an all-gather."""
    return 2 if operation == "all_reduce" else 1


def _level_of(cluster: Cluster, ranks: int, stride: int) -> NetworkLevel:
    return group_tier(cluster, ranks=ranks, stride=stride)


def _ranks_per_node(cluster: Cluster, ranks: int, stride: int) -> int:
    """Return how many ranks of a group share a node, 1 if that is one, all of them, or not the same on each node."""
    node = cluster.devices_per_node
    inside = node // stride
    regular = node % stride == 0 and 1 < inside < ranks and ranks % inside == 0
    return inside if regular else 1
