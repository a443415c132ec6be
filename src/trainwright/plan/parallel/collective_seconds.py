"""Seconds of exchanges in columns, with the contention that each axis derives from the topology; units of FSDP."""

from collections.abc import Sequence

import numpy as np

from trainwright.cluster import Cluster, contention
from trainwright.cluster.collectives import collective_times
from trainwright.cluster.network import FSDP_UNIT, OPERATIONS, ExchangeTimes
from trainwright.plan.parallel.mesh import Floats, numbered
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import Exchange

__all__ = ["all_seconds", "fsdp_groups", "group_seconds", "measured_group_costs"]


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


def measured_group_costs(cluster: Cluster) -> ExchangeTimes | None:
    """Return what a unit was measured to take, by its bytes; None where nobody did."""
    return next((item for item in cluster.measured if item.operation == FSDP_UNIT), None)


def group_seconds(arrays: ModelArrays, cluster: Cluster) -> Floats:
    """Return for each block the seconds that its units take in a micro-batch beyond two gathers and a scatter.

    That is copies and torch's own code; 0 where they were not measured.
    """
    found, times = np.zeros(len(arrays.blocks)), measured_group_costs(cluster)
    if times is None:
        return found
    known = {item.operation: item for item in cluster.measured if (item.tier, item.ranks) == (times.tier, times.ranks)}
    for block, weights in fsdp_groups(arrays):
        size = weights * arrays.precision.weight_bytes
        moved = 2 * float(known["all_gather"].at(size)) + float(known["reduce_scatter"].at(size))
        found[block] += max(0.0, float(times.at(size)) - moved)
    return found


def fsdp_groups(arrays: ModelArrays) -> list[tuple[int, float]]:
    """Return the units as (block of the chain, elements of its weights); each is there as often as its block.

    Units are numbered members of lists and sequences, the outermost ("layers.3" of "layers.3.attention.out"), and what
    is in none of them is one more: the blocks of a chain may be finer, or several in one.
    """
    found: dict[tuple[int, tuple[str, ...]], tuple[int, float]] = {}
    for layer, block, weights in zip(arrays.layers, arrays.block.tolist(), arrays.weights.tolist(), strict=True):
        if weights:
            # A repeated block has units of its own; what is there once may share one with other blocks.
            key = (block if arrays.counts[block] > 1 else -1, _group_of(layer.name))
            place, before = found.get(key, (block, 0.0))
            found[key] = place, before + weights
    return list(found.values())


def _group_of(path: str) -> tuple[str, ...]:
    parts = path.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), -1)
    return tuple(parts[: number + 1])
