"""Strategy: how dividing along one axis changes work, memory and communication, for candidates in columns."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainwright.cluster import Cluster, contention
from trainwright.cluster.collectives import collective_times
from trainwright.cluster.network import OPERATIONS, Operation
from trainwright.plan.parallel.mesh import Bools, Floats, Ints, Mesh, ParallelAxis, numbered
from trainwright.plan.parallel.model_arrays import ModelArrays

__all__ = ["Exchange", "Limit", "Operation", "ParallelStrategy", "Phase", "StageLoad", "all_seconds", "undivided"]

Phase = Literal["forward", "backward", "gradient", "update", "input"]


@dataclass(frozen=True, eq=False, slots=True)
class Exchange:
    """`count` exchanges of `bytes` bytes in a group of `ranks` ranks `stride` apart, one entry a candidate.

    With a `block` they happen once a micro-batch in every run of that block, without one once an iteration.
    """

    operation: Operation
    axis: str
    ranks: Ints
    stride: Ints
    bytes: Floats
    count: Floats
    phase: Phase
    block: int | None = None
    layer: str = ""
    overlaps: bool = False

    def at(self, row: int) -> "Exchange":
        """Return that of one candidate."""
        one = slice(row, row + 1)
        # Written out, for `replace` takes three times as long and a plan has hundreds.
        return Exchange(
            self.operation, self.axis, self.ranks[one], self.stride[one], self.bytes[one], self.count[one],
            self.phase, self.block, self.layer, self.overlaps,
        )  # fmt: skip


def all_seconds(cluster: Cluster, exchanges: Sequence[Exchange]) -> list[Floats]:
    """Return for each list of exchanges the seconds of one of its exchanges, 0 for candidates that have none.

    All exchanges of one operation among equal groups are priced in one go.
    """
    if not exchanges:
        return []
    rows = [len(exchange.ranks) for exchange in exchanges]
    operations = np.repeat([OPERATIONS.index(exchange.operation) for exchange in exchanges], rows)
    ranks, stride, size, count = (
        np.concatenate([getattr(exchange, name) for exchange in exchanges])
        for name in ("ranks", "stride", "bytes", "count")
    )
    seconds = np.zeros(len(ranks))
    active = np.flatnonzero((count > 0) & (ranks > 1))
    codes = operations[active]
    for column in (ranks[active], stride[active]):
        numbers, different = numbered(column)
        # One number for each combination of operation, ranks and stride, as digits of a mixed base.
        codes = codes * different + numbers
    # Codes of two bytes are sorted in one pass over them, and there are hardly ever more.
    order = np.argsort(codes.astype(np.uint16) if codes.max(initial=0) < 2**16 else codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order])) + 1
    for places in np.split(active[order], starts):
        if not len(places):
            continue
        operation, among, distance = (int(column[places[0]]) for column in (operations, ranks, stride))
        seconds[places] = collective_times(
            cluster,
            OPERATIONS[operation],
            size[places],
            ranks=among,
            stride=distance,
            flows=contention(cluster, ranks=among, stride=distance),
        )
    return np.split(seconds, np.cumsum(rows)[:-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """How many devices an axis can use at most, and what says so."""

    most: int
    by: str


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class StageLoad:
    """What a device of the busiest pipeline stage holds: what the exchanges of whole stages are made of."""

    runs: Floats
    """(candidates, blocks): how often each block runs in that stage."""
    weights: Floats
    """(candidates, blocks): elements that one run of a block has on a device, before weights are divided as state."""
    trained: Floats
    """(candidates, blocks): those of them that get gradients."""
    trained_experts: Floats
    """(candidates, blocks): those of these that are experts'."""
    cut_bytes: Floats
    """What a sample hands from stage to stage."""


class ParallelStrategy(ABC):
    """One way to divide, along one axis of `Degrees`; hybrids are several at once, shares multiply.

    Shares and lists are what the strategy itself divides or exchanges: other axes come on top. What a strategy does not
    say divides nothing.
    """

    axis: ParallelAxis
    """The axis along which it divides, which becomes a field of `Degrees`."""

    @abstractmethod
    def limit(self, arrays: ModelArrays, batch: int) -> Limit:
        """Return the most devices, 1 if it cannot be used for this model, and why no more."""

    def applies(self, arrays: ModelArrays, degrees: Ints) -> Bools:  # noqa: ARG002 -- parts need not be equal
        """Return for which degrees within the limit the model can be divided."""
        return degrees >= 1

    def compute(self, arrays: ModelArrays, mesh: Mesh) -> Floats:
        """Return the share of a layer's work that one device does: (candidates, layers)."""
        return undivided(arrays, mesh)

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Return the shares of a layer's weights and of what it keeps that one device holds: (candidates, layers)."""
        return undivided(arrays, mesh), undivided(arrays, mesh)

    @abstractmethod
    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return what is exchanged; `load` is None while blocks are priced, and given for the exchanges of stages."""


def undivided(arrays: ModelArrays, mesh: Mesh) -> Floats:
    """Return a share of one for every layer."""
    return np.ones((mesh.rows, len(arrays.layers)))
