"""Iteration: what a training step is made of, and its seconds on a machine whose constants are known or sought.

The parts do not change while constants are fitted: seconds of the layers on one device, by whether they are divided;
the list of exchanges; where samples come from. The machine turns them into seconds:

    layers     f (c + (1 - c) / p) for each kind of layer that p devices share, f for the others
    exchanges  the cluster's collectives; staged ones go through host memory, a link of its own
    input      max(b decode, b_node / node_rate) (1 + spread sqrt(2 ln n)), what of it computation does not hide

n nodes read independently and an iteration waits for the slowest: the expected largest of n normal deviates grows like
sqrt(2 ln n) (Cramer 1946). Where one device of a group reads and hands the batch on, that broadcast is not hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.cluster import Cluster, NetworkLevel, contention
from trainwright.cluster.collectives import collective_candidates
from trainwright.errors import InputError
from trainwright.plan.parallel.strategies.strategy import Operation

__all__ = ["Exchange", "Iteration", "Machine", "Terms", "iteration_terms"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """`count` exchanges of `bytes` bytes among `ranks` ranks whose numbers differ by `stride`."""

    operation: Operation
    ranks: int
    bytes: float
    stride: int = 1
    count: float = 1.0
    staged: bool = False
    """Whether data goes through host memory, as of libraries that cannot address the device's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Iteration:
    """One iteration on `devices` devices in groups of `parts` that share `samples` samples."""

    devices: int
    samples: float
    parts: int = 1
    whole_seconds: float = 0.0
    """Of a sample on one device, forward and backward: the layers that every device of the group does."""
    divided_seconds: Mapping[str, float] = field(default_factory=dict)
    """Of a sample on one device, by kind: the layers of which each device of the group does a part."""
    exchanges: tuple[Exchange, ...] = ()
    sample_bytes: float = 0.0
    """As a device gets it, decoded."""
    handed_on: bool = False
    """Whether one device of each group reads and decodes and hands the batch to the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A cluster and the constants beside its links."""

    cluster: Cluster
    algorithms: frozenset[str] = frozenset({"ring", "tree", "hierarchical", "pairwise", "direct"})
    """What its library knows; of these the fastest is taken. NCCL before 2.12 had no hierarchical all-reduce."""
    host: NetworkLevel | None = None
    """Between devices of a node through host memory; None: as the node's own tier."""
    whole: Mapping[str, float] = field(default_factory=dict)
    """c of each kind of layer: the share of its time that stays however far it is divided."""
    decode_seconds: float = 0.0
    """Of a sample, in one reading process."""
    node_rate: float = float("inf")
    """Samples a second that a node can read and decode with all its processes."""
    spread: float = 0.0
    """Relative deviation of the reading time between nodes."""
    handing_seconds: float = 0.0
    """Seconds a byte to hand a batch on inside a node."""
    overhead_seconds: float = 0.0
    """Framework seconds of an iteration that one device does not have."""

    def __post_init__(self) -> None:
        for name in ("decode_seconds", "spread", "handing_seconds", "overhead_seconds"):
            if not getattr(self, name) >= 0:
                raise InputError(f"Machine.{name}: got {getattr(self, name)!r}; allowed: a number >= 0")
        if not self.node_rate > 0:
            raise InputError(f"Machine.node_rate: got {self.node_rate!r}; allowed: a number above 0")


class Terms(NamedTuple):
    """Seconds of iterations by what they go to, one entry an iteration."""

    compute: Floats
    exchange: Floats
    handing: Floats
    overhead: Floats
    input: Floats
    """Exposed."""

    @property
    def total(self) -> Floats:
        """Seconds of the iterations."""
        total: Floats = np.sum(self, axis=0)
        return total


def iteration_terms(machine: Machine, iterations: Sequence[Iteration]) -> Terms:
    """Return the seconds of every iteration by part."""
    node = machine.cluster.devices_per_node
    rows = [_row(machine, each, node) for each in iterations]
    compute, handing, overhead, reading = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    exchange = _exchange_seconds(machine, iterations)
    step = compute + exchange + handing + overhead
    return Terms(compute, exchange, handing, overhead, np.maximum(0.0, reading - step))


def _row(machine: Machine, each: Iteration, node: int) -> tuple[float, float, float, float]:
    divided = sum(
        seconds * (share + (1 - share) / each.parts)
        for kind, seconds in each.divided_seconds.items()
        for share in (machine.whole.get(kind, 0.0),)
    )
    nodes = max(1.0, each.devices / node)
    readers = 1 if each.handed_on else min(node, each.devices)
    reading = each.samples * max(machine.decode_seconds, readers / machine.node_rate)
    return (
        each.samples * (each.whole_seconds + divided),
        each.samples * each.sample_bytes * machine.handing_seconds if each.handed_on and each.parts > 1 else 0.0,
        machine.overhead_seconds if each.devices > 1 else 0.0,
        reading * (1 + machine.spread * float(np.sqrt(2 * np.log(nodes)))),
    )


def _exchange_seconds(machine: Machine, iterations: Sequence[Iteration]) -> Floats:
    """Return the seconds of all exchanges of each iteration; those of one kind are priced together."""
    kinds: dict[tuple[Operation, int, int, bool], list[tuple[int, Exchange]]] = {}
    for place, each in enumerate(iterations):
        for exchange in each.exchanges:
            key = exchange.operation, exchange.ranks, exchange.stride, exchange.staged
            kinds.setdefault(key, []).append((place, exchange))
    found = np.zeros(len(iterations))
    for (operation, ranks, stride, staged), members in kinds.items():
        cluster = _staging(machine) if staged else machine.cluster
        flows = 1.0 if staged else contention(cluster, ranks=ranks, stride=stride)
        sizes, sort = np.unique([exchange.bytes for _, exchange in members], return_inverse=True)
        seconds = np.zeros(len(sizes))
        for i, size in enumerate(sizes):
            costs = collective_candidates(cluster, operation, float(size), ranks=ranks, stride=stride, flows=flows)
            known = [cost for name, cost in costs.items() if name in machine.algorithms]
            seconds[i] = min(known or costs.values())
        counts = [exchange.count for _, exchange in members]
        np.add.at(found, [run for run, _ in members], seconds[sort.ravel()] * counts)
    return found


def _staging(machine: Machine) -> Cluster:
    """Return the cluster as staged exchanges see it: the tier of a node is the way through host memory."""
    cluster, host = machine.cluster, machine.host
    if host is None:
        return cluster
    return Cluster(cluster.nodes, cluster.devices_per_node, tiers=(host, *cluster.tiers[1:]))
