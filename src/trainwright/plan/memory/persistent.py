"""The best persistent plan of a chain: a dynamic programme over stages and memory, for heterogeneous chains.

C(s,t,m) is the least time to run stages s..t forward and backward in m slots of memory, where a^{s-1} is held but paid
by the caller and the gradient of a^t arrives and is paid inside m (Beaumont et al., arXiv 1911.13214):

    C(s,t,m) = min of
      over s' in s+1..t:  sum of plain forwards s..s'-1 + C(s', t, m - w_a[s'-1]) + C(s, s'-1, m)   if m >= m_0(s,s',t)
      over options of s:  forward_s + C(s+1, t, m - w_saved[s]) + backward_s                        if m >= m_all(s,t)

m_0 and m_all are the peaks of the forwards and of the two operations of stage s; m_all counts the gradient that the
backward makes beside the one that it reads. Both count the parameters' gradients that are there by then: those of all
stages behind t, and in the backward of s those of s and behind. A plan is persistent if what is kept is kept until its
backward has run; `phases` goes beyond.

Sizes are rounded up to slots (limits are summed in bytes and rounded once), so every plan is within the budget; with
sizes rounded down and the budget rounded up the value is a lower bound of all persistent plans.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Operation, operations_of
from trainwright.plan.memory.sizes import sizes_of

__all__ = ["PersistentPlan", "PersistentTable", "Rounding", "solve_persistent"]

Rounding = Literal["up", "nearest", "down"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PersistentPlan:
    """A plan and the seconds of its operations, before any simulation."""

    operations: tuple[Operation, ...]
    seconds: float


def solve_persistent(
    chain: Chain, budget_bytes: int, *, slots: int = 500, rounding: Rounding = "up"
) -> PersistentPlan | None:
    """Return the best persistent plan within a budget (fixed bytes included), or None if there is none.

    O(L^2 * slots) bytes, O(L^3 * slots) time.
    """
    room = budget_bytes - chain.fixed_bytes
    if room < 0:
        return None
    unit = max(1, room // slots)
    count = -(-room // unit) if rounding == "down" else room // unit
    return PersistentTable(chain, unit=unit, slots=count, rounding=rounding).plan(count)


class PersistentTable:
    """The table of one chain for every memory up to `slots` units of `unit` bytes, fixed bytes apart."""

    def __init__(self, chain: Chain, *, unit: int, slots: int, rounding: Rounding = "up") -> None:
        from trainwright.plan.memory._persistent import fill_table

        self.unit, self.slots = unit, slots
        self._up = {"up": unit - 1, "nearest": unit // 2, "down": 0}[rounding]
        self._sizes = sizes_of(chain)
        self.table, self.start = fill_table(self._sizes, (unit, self._up, slots))

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """Seconds of the whole chain for each number of slots, infinite below the least feasible."""
        return self.table[len(self._sizes.no_grad_forward) - 1]  # type: ignore[no-any-return]

    def plan(self, slots: int) -> PersistentPlan | None:
        """Return the best plan in so many slots, or None if there is none."""
        from trainwright.plan.memory._persistent import walk_table

        rows, seconds = walk_table(self._sizes, self.table, self.start, (self.unit, self._up, slots))
        if not len(rows):
            return None
        return PersistentPlan(operations=operations_of(rows), seconds=seconds)
