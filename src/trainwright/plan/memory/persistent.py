"""The best persistent plan of a chain: a dynamic programme over stages and memory, for heterogeneous chains.

C(s,t,m) is the least time to run stages s..t forward and backward in m slots of memory, where a^{s-1} is held but paid
by the caller and the gradient of a^t arrives and is paid inside m (Beaumont et al., arXiv 1911.13214):

    C(s,t,m) = min of
      over s' in s+1..t:  sum of plain forwards s..s'-1 + C(s', t, m - w_a[s'-1]) + C(s, s'-1, m)   if m >= m_0(s,s',t)
      over options of s:  forward_s + C(s+1, t, m - w_saved[s]) + backward_s                        if m >= m_all(s,t)

m_0 and m_all are the peaks of the forwards and of the two operations of stage s; m_all counts the gradient that the
backward makes beside the one that it reads. Both count the parameters' gradients that are there by then: those of all
stages behind t, and in the backward of s those of s and behind. A plan is persistent if what is kept is kept until its
backward has run; `improve` goes beyond.

Sizes are rounded up to slots (limits are summed in bytes and rounded once), so every plan is within the budget; with
sizes rounded down and the budget rounded up the value is a lower bound of all persistent plans.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.sizes import sizes_of
from trainwright.plan.memory.skip_connections import SkipGuesses

__all__ = ["PersistentPlan", "PersistentTable", "Rounding", "lowest_plan", "solve_persistent"]

Rounding = Literal["up", "nearest", "down"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PersistentPlan:
    """A plan and the seconds of its operations, before any simulation."""

    operations: tuple[Operation, ...]
    seconds: float


def solve_persistent(
    chain: Chain, budget_bytes: int, *, slots: int = 500, rounding: Rounding = "up", leaves_only: bool = False
) -> PersistentPlan | None:
    """Return the best persistent plan within a budget (fixed bytes included), or None if there is none.

    `leaves_only` allows forwards with gradients only right before their backward, as in revolve. O(L^2 * slots) bytes,
    O(L^3 * slots) time.
    """
    room = budget_bytes - chain.fixed_bytes
    if room < 0:
        return None
    unit = max(1, room // slots)
    count = -(-room // unit) if rounding == "down" else room // unit
    return PersistentTable(chain, unit=unit, slots=count, rounding=rounding, leaves_only=leaves_only).plan(count)


def lowest_plan(chain: Chain) -> tuple[tuple[Operation, ...], int]:
    """Return the persistent plan of the least peak, whatever its time, and that peak in bytes, fixed ones included.

    Where values skip stages: the least of the plans for what is guessed to be alive of them.
    """
    if not chain.skips:
        return _least_plan(chain)
    plans = []
    guesses = SkipGuesses(chain)
    for guess in guesses:
        operations, _ = _least_plan(guess)
        simulation = simulate(chain, operations)
        guesses.learn(simulation)
        plans.append((operations, simulation.peak_bytes))
    return min(plans, key=lambda plan: plan[1])


def _least_plan(chain: Chain) -> tuple[tuple[Operation, ...], int]:
    from trainwright.plan.memory._persistent import least_bytes

    need, choice = least_bytes(sizes_of(chain))
    n = len(chain.steps)
    operations: list[Operation] = []
    tasks: list[Operation | tuple[int, int]] = [(0, n - 1)]
    while tasks:
        task = tasks.pop()
        if isinstance(task, Operation):
            operations.append(task)
            continue
        s, t = task
        which = int(choice[s * n - s * (s - 1) // 2 + t - s])
        if which < 0:
            operations.append(Operation(OperationKind.FORWARD_ALL, s + 1, None, -1 - which))
            tasks += [Operation(OperationKind.BACKWARD, s + 1), *([(s + 1, t)] if s < t else [])]
        else:
            operations.append(Operation(OperationKind.FORWARD_KEEP, s + 1))
            operations += [Operation(OperationKind.FORWARD_DROP, stage) for stage in range(s + 2, which + 1)]
            tasks += [(s, which - 1), Operation(OperationKind.DELETE, which, Value.OUTPUT), (which, t)]
    return tuple(operations), int(need[n - 1]) + chain.fixed_bytes


class PersistentTable:
    """The table of one chain for every memory up to `slots` units of `unit` bytes, fixed bytes apart."""

    def __init__(
        self, chain: Chain, *, unit: int, slots: int, rounding: Rounding = "up", leaves_only: bool = False
    ) -> None:
        from trainwright.plan.memory._persistent import fill_table

        self.unit, self.slots = unit, slots
        self._up = {"up": unit - 1, "nearest": unit // 2, "down": 0}[rounding]
        self._leaves_only = leaves_only
        self._sizes = sizes_of(chain)
        self.table, self.start = fill_table(self._sizes, (unit, self._up, slots), leaves_only)

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """Seconds of the whole chain for each number of slots, infinite below the least feasible."""
        return self.table[len(self._sizes.no_grad_forward) - 1]  # type: ignore[no-any-return]

    def plan(self, slots: int) -> PersistentPlan | None:
        """Return the best plan in so many slots, or None if there is none."""
        from trainwright.plan.memory._persistent import walk_table

        rows, seconds = walk_table(self._sizes, self.table, self.start, (self.unit, self._up, slots), self._leaves_only)
        if not len(rows):
            return None
        return PersistentPlan(operations=tuple(_make_operation(*row) for row in rows.tolist()), seconds=seconds)


_KINDS = (
    OperationKind.FORWARD_ALL,
    OperationKind.FORWARD_KEEP,
    OperationKind.FORWARD_DROP,
    OperationKind.BACKWARD,
    OperationKind.DELETE,
)


def _make_operation(kind: int, stage: int, option: int) -> Operation:
    if kind == 0:
        return Operation(OperationKind.FORWARD_ALL, stage, None, option)
    return Operation(_KINDS[kind], stage, Value.OUTPUT if kind == 4 else None)
