"""Seconds of a pipeline stage that recomputes what it cannot hold for all micro-batches in flight.

The forward of a micro-batch is far from its backward; the bytes k that it holds in between count once for every
micro-batch in flight. D(s,t,m,k) is the least time of layers s..t with m slots while one micro-batch runs and at most
k slots of it held across the gap:

    stop:   plain forwards s..t + C(s,t,m)                                       nothing but the input is held
    split:  plain forwards s..s'-1 + D(s',t, m - w_a[s'-1], k - w_a[s'-1]) + C(s, s'-1, m)
    keep:   forward_s + D(s+1,t, m - w_saved[s], k - w_saved[s]) + backward_s

with the limits of C, the table of `persistent` over the whole chain, which every stage shares. A stage with g
micro-batches in flight takes the least over k of D(s, t, room - (g - 1) k, k). Slots are powers of two of bytes, the
least in which the room has no more than the most slots, and all slots of the half beside: what fits into so many small
slots fits into as many large ones, so that more room is never slower.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trainwright.model.chain import Chain
from trainwright.plan.memory.persistent import PersistentTable
from trainwright.plan.memory.sizes import sizes_of

__all__ = ["RematerialisationTables"]

_SLOTS = 120


class RematerialisationTables:
    """D of a chain for slots of every size, made when they are first asked for; the loss goes with the last layer."""

    def __init__(self, chain: Chain) -> None:
        self._sizes, self._layers, self._steps = sizes_of(chain), len(chain.stages), len(chain.steps)
        self._persistent = cache(lambda unit: PersistentTable(chain, unit=unit, slots=_SLOTS))
        self._rows = cache(self._across)

    def seconds(self, first: int, last: int, flying: int, room: int) -> float:
        """Return the least time of layers first..last for a micro-batch of so many in flight; inf if none fits."""
        if room < 0:
            return math.inf
        unit = 1 << (room // (_SLOTS + 1)).bit_length()
        found = self._least(first, last, flying, unit, room // unit)
        return found if unit == 1 else min(found, self._least(first, last, flying, unit // 2, _SLOTS))

    def _least(self, first: int, last: int, flying: int, unit: int, slots: int) -> float:
        held = np.arange(slots // flying + 1)
        return float(self._rows(unit, last)[first - 1][slots - (flying - 1) * held, held].min())

    def _across(self, unit: int, last: int) -> NDArray[np.float32]:
        """D(s, last, m, k) for all s, with k in slots."""
        from trainwright.plan.pipeline._rematerialised import fill_across

        end = self._steps if last == self._layers else last
        return fill_across(self._sizes, self._persistent(unit).table, end - 1, (unit, unit - 1, _SLOTS))
