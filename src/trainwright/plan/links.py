"""Links: seconds of exchanges in columns, each with the contention that its own axis derives from the topology."""

from collections.abc import Sequence

import numpy as np

from trainwright.cluster import OPERATIONS, Cluster, collective_times, contention
from trainwright.plan.mesh import Floats
from trainwright.plan.strategies import Exchange

__all__ = ["all_seconds"]

_RANKS, _STRIDE = 2**40, 2**20  # room for an operation, ranks and stride in one number


def all_seconds(cluster: Cluster, exchanges: Sequence[Exchange]) -> list[Floats]:
    """Return for each list of exchanges the seconds of one of its exchanges, 0 for candidates that have none.

    All exchanges of one operation among equal groups are priced in one go.
    """
    if not exchanges:
        return []
    rows = [len(exchange.ranks) for exchange in exchanges]
    operations = np.repeat([OPERATIONS.index(exchange.operation) for exchange in exchanges], rows)
    ranks, stride, size, count = (
        np.concatenate([np.broadcast_to(getattr(exchange, name), len(exchange.ranks)) for exchange in exchanges])
        for name in ("ranks", "stride", "bytes", "count")
    )
    seconds = np.zeros(len(ranks))
    active = np.flatnonzero((count > 0) & (ranks > 1))
    codes = operations[active] * _RANKS + ranks[active] * _STRIDE + stride[active]
    order = np.argsort(codes, kind="stable")
    groups, starts = np.unique(codes[order], return_index=True)
    for group, places in zip(groups, np.split(active[order], starts)[1:], strict=True):
        operation, rest = divmod(int(group), _RANKS)
        among, apart = divmod(rest, _STRIDE)
        seconds[places] = collective_times(
            cluster,
            OPERATIONS[operation],
            size[places],
            ranks=among,
            stride=apart,
            flows=contention(cluster, ranks=among, stride=apart),
        )
    return np.split(seconds, np.cumsum(rows)[:-1])
