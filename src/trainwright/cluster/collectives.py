"""Predicts the cost of collectives: seconds of an all-reduce or another exchange among a group of a cluster's ranks.

The algorithm that takes least is assumed.
Each algorithm costs `alpha` seconds a message and `beta` seconds a byte of one link. Sizes are those of the whole
message in bytes (of an all-gather, what each rank ends with). Sources: R. Hockney, Parallel Computing 20 (1994);
Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005), for rings; the trees are pipelined in as many chunks as cost least.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.network import OPERATIONS, Operation
from trainwright.cluster.placement import contention, group_tier
from trainwright.errors import InputError
from trainwright.validators import check, number, one_of

__all__ = ["CollectiveCost", "collective_candidates", "collective_seconds", "collective_times"]

Seconds = float | NDArray[np.float64]


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
    found = collective_candidates(cluster, operation, float(bytes), ranks=ranks, stride=stride, flows=flows)
    name = min(found, key=found.__getitem__)
    tier = group_tier(cluster, ranks=ranks, stride=stride).name if ranks > 1 else ""
    return CollectiveCost(float(found[name]), name, tier)


def collective_times(
    cluster: Cluster, operation: Operation, sizes: ArrayLike, *, ranks: int, stride: int = 1, flows: float = 1.0
) -> NDArray[np.float64]:
    """Return the seconds of `collective_seconds` for an array of message sizes in bytes."""
    array = np.asarray(sizes, dtype=np.float64)
    found = collective_candidates(cluster, operation, array, ranks=ranks, stride=stride, flows=flows)
    return np.array(functools.reduce(np.minimum, found.values()), dtype=np.float64)


def collective_candidates(
    cluster: Cluster, operation: Operation, size: Seconds, *, ranks: int, stride: int = 1, flows: float = 1.0
) -> dict[str, Seconds]:
    """Return the seconds of every algorithm that the group may use, by name, for one size or an array of sizes."""
    check(operation, one_of(*OPERATIONS), "operation")
    if not np.all(np.greater_equal(size, 0)):
        raise InputError(f"bytes of {operation}: got {size!r}; allowed: numbers >= 0")
    check(flows, number(minimum=1), "flows")
    if ranks == 1:
        return {"none": size * 0.0}
    tier = group_tier(cluster, ranks=ranks, stride=stride)
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
    tier = group_tier(cluster, ranks=ranks, stride=stride)
    alpha, beta = tier.alpha, tier.beta * flows
    # Point-to-point and one-to-all operations have a single algorithm here.
    if operation == "send":
        return {"direct": alpha + size * beta}
    if operation == "broadcast":
        return {"tree": tree_seconds(size, ranks, alpha, beta)}
    if operation == "all_to_all":
        return {"pairwise": ring_seconds(size, ranks, alpha, beta)}
    found = _price_flat(operation, size, ranks, alpha, beta)
    # With several ranks in each node, a reduction inside the node first lets one ring a device cross the network.
    inside = _ranks_per_node(cluster, ranks, stride)
    if inside > 1:
        near = group_tier(cluster, ranks=inside, stride=stride)
        # As many rings cross the network as the group has ranks in a node, and share its links with those of others.
        far = tier.beta * max(flows, contention(cluster, ranks=ranks // inside, stride=inside * stride))
        # A device exchanges only its share of the message with its counterparts on the other nodes.
        outer = _price_flat(operation, size / inside, ranks // inside, alpha, far)
        # Inside the node every byte goes round, outside only each device's share.
        inner = _ring_passes(operation) * ring_seconds(size, inside, near.alpha, near.beta)
        found["hierarchical"] = inner + functools.reduce(np.minimum, outer.values())
    return found


def _price_flat(operation: Operation, size: Seconds, ranks: int, alpha: float, beta: float) -> dict[str, Seconds]:
    found = {"ring": _ring_passes(operation) * ring_seconds(size, ranks, alpha, beta)}
    if operation == "all_reduce":
        # A reduction to the root, then a broadcast from it.
        found["tree"] = 2 * tree_seconds(size, ranks, alpha, beta)
    return found


def _ring_passes(operation: Operation) -> int:
    """Return how often the message goes round: an all-reduce is a reduce-scatter and an all-gather."""
    return 2 if operation == "all_reduce" else 1


def _ranks_per_node(cluster: Cluster, ranks: int, stride: int) -> int:
    """Return how many ranks of a group share a node, 1 if that is one, all of them, or not the same on each node."""
    node = cluster.devices_per_node
    inside = node // stride
    regular = node % stride == 0 and 1 < inside < ranks and ranks % inside == 0
    return inside if regular else 1


def ring_seconds(size: Seconds, ranks: int, alpha: float, beta: float) -> Seconds:
    """Return the seconds of one way round a ring: (p - 1)(alpha + m beta / p).

    That is an all-gather, a reduce-scatter or a pairwise all-to-all; an all-reduce is two of them.
    """
    # In each of p - 1 steps every rank passes on one of p equal parts.
    return (ranks - 1) * (alpha + size * (beta / ranks))


def tree_seconds(size: Seconds, ranks: int, alpha: float, beta: float) -> Seconds:
    """Return the seconds of one way through a pipelined tree: (ceil(log2 p) + k - 1)(alpha + m beta / k).

    That is a broadcast or a reduction; an all-reduce is two of them. k is the number of chunks that costs least.
    """
    parts = chunk_count(size, ranks, alpha, beta)
    # The first chunk needs a step for every level, and each further chunk arrives one step later.
    return (_tree_depth(ranks) + parts - 1) * (alpha + size * beta / parts)


def chunk_count(size: Seconds, ranks: int, alpha: float, beta: float) -> Seconds:
    """Return the number of chunks, at least 1 and of at least a byte each, with which `tree` takes the least time.

    The derivative vanishes at k = sqrt((depth - 1) m beta / alpha); the cost is convex in k, so that the best whole
    number is one of the two next to it.
    """
    # A chunk has at least one byte.
    most = np.maximum(1.0, np.floor(size))
    depth = _tree_depth(ranks)
    # Where messages cost nothing, more chunks never cost more; at depth 1 they gain nothing either.
    if alpha == 0:
        return _same_type(size, most if depth > 1 else np.ones_like(most))
    # The root of the derivative, rounded down; the best whole number is it or the next.
    low = np.clip(np.floor(np.sqrt((depth - 1) * size * beta / alpha)), 1.0, most)
    high = np.minimum(low + 1, most)

    def cost(parts: Seconds) -> Seconds:
        return (depth + parts - 1) * (alpha + size * beta / parts)

    return _same_type(size, np.where(cost(high) < cost(low), high, low))


def _tree_depth(ranks: int) -> int:
    return math.ceil(math.log2(ranks))


def _same_type(size: Seconds, value: NDArray[np.float64]) -> Seconds:
    return value if isinstance(size, np.ndarray) else float(value)
