"""Chooses which stages to recompute (activation checkpointing): the dynamic programme of the best persistent plan.

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

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.kernels import Ints
from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import (
    BACKWARD,
    DELETE,
    FORWARD_ALL,
    FORWARD_DROP,
    FORWARD_KEEP,
    Operation,
    operations_of,
)
from trainwright.plan.memory.sizes import sizes_of

__all__ = ["PersistentPlan", "PersistentTable", "PlanNode", "Rounding", "rows_of_nodes", "solve_persistent"]

Rounding = Literal["up", "nearest", "down"]
_EXPAND = -1
"""A task of `rows_of_nodes`: a node of the plan that is still to be expanded."""


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


class PlanNode(NamedTuple):
    """Stages s..t (from 0) in m slots."""

    s: int
    t: int
    m: int = 0


def rows_of_nodes(root: PlanNode, choose: Callable[[PlanNode], tuple[int, int, PlanNode]]) -> Ints:
    """Return a plan as rows (kind, stage from 1, option).

    `choose` returns of a node the option of its first stage, or -1 and the split, and the node of what runs behind.
    """
    rows: list[tuple[int, int, int]] = []
    # A stack instead of recursion; tasks that are rows already stand below the nodes that come before them.
    tasks: list[tuple[int, PlanNode]] = [(_EXPAND, root)]
    while tasks:
        kind, node = tasks.pop()
        if kind != _EXPAND:
            rows.append((kind, node.s, node.t))
            continue
        option, split, inner = choose(node)
        if option >= 0:
            # Stage s is saved: its forward, all behind it, its backward.
            rows.append((FORWARD_ALL, node.s + 1, option))
            tasks.append((BACKWARD, PlanNode(node.s + 1, 0)))
            if node.s < node.t:
                tasks.append((_EXPAND, inner))
            continue
        # Forwards up to the split, all behind it, the bare output that it began with goes, and s..split-1 once more.
        rows.append((FORWARD_KEEP, node.s + 1, 0))
        rows += [(FORWARD_DROP, stage, 0) for stage in range(node.s + 2, split + 1)]
        tasks += [(_EXPAND, node._replace(t=split - 1)), (DELETE, PlanNode(split, -1)), (_EXPAND, inner)]
    return np.array(rows, np.int64)


class PersistentTable:
    """The table of one chain for every memory up to `slots` units of `unit` bytes, fixed bytes apart."""

    def __init__(self, chain: Chain, *, unit: int, slots: int, rounding: Rounding = "up") -> None:
        from trainwright.plan.memory._dynamic_programs import fill_table

        self.unit, self.slots = unit, slots
        self._up = {"up": unit - 1, "nearest": unit // 2, "down": 0}[rounding]
        self._sizes = sizes_of(chain)
        self.table = fill_table(self._sizes, (unit, self._up, slots))

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """Seconds of the whole chain for each number of slots, infinite below the least feasible."""
        return self.table[len(self._sizes.no_grad_forward) - 1]  # type: ignore[no-any-return]

    def plan(self, slots: int) -> PersistentPlan | None:
        """Return the best plan in so many slots, or None if there is none."""
        from trainwright.plan.memory._dynamic_programs import choose_persistent

        if not np.isfinite(self.values[slots]):
            return None
        sizes, grid, seconds = self._sizes, (self.unit, self._up, slots), 0.0

        def choose(node: PlanNode) -> tuple[int, int, PlanNode]:
            nonlocal seconds
            s, t, m = node
            option, split = choose_persistent(sizes, self.table, grid, (s, t, m))
            if split < 0:
                seconds += sizes.forward[option] + sizes.backward[option]
            else:
                seconds += sizes.no_grad_forward[s:split].sum()
            held = sizes.saved[option] if split < 0 else sizes.output[split]
            inner = PlanNode(s + 1 if split < 0 else split, t, m - int(held + self._up) // self.unit)
            return option - int(sizes.first[s]) if split < 0 else -1, split, inner

        rows = rows_of_nodes(PlanNode(0, len(sizes.no_grad_forward) - 1, slots), choose)
        return PersistentPlan(operations=operations_of(rows), seconds=float(seconds))
