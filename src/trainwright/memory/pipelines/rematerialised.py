"""Seconds of a pipeline stage that recomputes what it cannot hold for all micro-batches in flight.

The forward of a micro-batch is far from its backward; the bytes k that it holds in between count once for every
micro-batch in flight. D(s,t,m,k) is the least time of layers s..t with m slots while one micro-batch runs and at most
k slots of it held across the gap:

    stop:   plain forwards s..t + C(s,t,m)                                       nothing but the input is held
    split:  plain forwards s..s'-1 + D(s',t, m - w_a[s'-1], k - w_a[s'-1]) + C(s, s'-1, m)
    keep:   forward_s + D(s+1,t, m - w_saved[s], k - w_saved[s]) + backward_s

with the limits of C, the table of `persistent` over the whole chain, which every stage shares. A stage with g
micro-batches in flight takes the least over k of D(s, t, room - (g - 1) k, k).
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trainwright.memory.chain import Chain
from trainwright.memory.persistent import Persistent
from trainwright.memory.sizes import sizes_of

__all__ = ["planned_cost"]

_SLOTS = 120
_LEVELS = 12


def planned_cost(
    chain: Chain, memory_bytes: int, *, end_of: Callable[[int], int], room: Callable[[int, int, int], int],
    most_flying: int,
) -> Callable[[int, int, int], float]:  # fmt: skip
    """Return (first, last, in flight) -> seconds of a micro-batch; `room` says what the stage may use for them."""
    from trainwright.memory.pipelines._rematerialised import across

    unit = max(1, -(-memory_bytes // _SLOTS))
    table = Persistent(chain, unit=unit, slots=_SLOTS)
    sizes = sizes_of(chain)

    @cache
    def rows(last: int) -> NDArray[np.float32]:
        """D(s, last, m, k) for all s, with k in slots."""
        return across(sizes, table.table, end_of(last) - 1, (unit, unit - 1, _SLOTS))

    def cost(first: int, last: int, flying: int) -> float:
        slots = min(_SLOTS, room(first, last, flying) // unit)
        if slots < 0 or flying > most_flying:
            return math.inf
        found = rows(last)[first - 1]
        most = slots if flying == 1 else slots // flying
        levels = np.arange(most + 1) if most < 4 * _LEVELS else most * np.arange(_LEVELS + 1) // _LEVELS
        return float(found[slots - (flying - 1) * levels, levels].min())

    return cost
