"""Seconds of exchanges in columns, with the contention that each axis derives from the topology."""

from collections.abc import Sequence

import numpy as np

from trainwright.cluster import Cluster, contention
from trainwright.cluster.collectives import collective_times
from trainwright.cluster.network import OPERATIONS
from trainwright.plan.parallel.mesh import Floats, numbered
from trainwright.plan.parallel.strategies.strategy import Exchange

__all__ = ["all_seconds"]


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
