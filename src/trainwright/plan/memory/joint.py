"""Rematerialisation and offloading in one dynamic programme, in which bytes that leave have a price.

D(s, t, x, m) is the least time of stages s..t forward and backward in m slots, given what stage s - 1 has left (x: its
bare output, or what one of its options saves, W bytes, paid inside m), plus `price` seconds for each byte that waits
on the host meanwhile. As in the persistent programme, either s is saved or forwards go on to a split s'; and while
what comes behind runs, W stays or leaves (the transitions of POFO, Beaumont et al., NeurIPS 2021):

    D = min of
      over options of s:   forward_s + backward_s + min(D(s+1, t, saved_s, m - W), D(s+1, t, saved_s, m) + price W)
      over s' in s+1..t:   plain forwards s..s'-1 + D(s, s'-1, x, m)
                             + min(D(s', t, a^{s'-1}, m - W), D(s', t, a^{s'-1}, m) + price W)

Copies cost nothing here but their price, and free their bytes at once: at a price of zero the link is endless, at a
high one nothing leaves. A link of `rate` bytes a second moves at most `rate T` bytes in a step of T seconds, so that
with sizes rounded down D / (1 + price rate) is a lower bound of all such plans, for every price (Lagrange).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.kernels import Ints
from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.plan.memory.sizes import sizes_of

if TYPE_CHECKING:
    from trainwright.plan.memory._joint import PricedTable

__all__ = ["PricedPlan", "PricedProgram", "operations_of", "rows_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedPlan:
    """A plan as rows of `_joint`, which say what leaves too, and what it takes."""

    rows: Ints
    price: float
    seconds: float
    """Of the operations alone."""
    bytes: float
    """Of what leaves, each time."""

    @property
    def value(self) -> float:
        """Seconds, with the price of what leaves."""
        return self.seconds + self.price * self.bytes


class PricedProgram:
    """The programme of a chain in `room` bytes beside the fixed ones; each price has a table of its own.

    `down` rounds sizes down and the room up, for a bound. A table takes O(L^3 slots) time and O(L^2 slots) bytes.
    """

    def __init__(self, chain: Chain, room: int, *, slots: int = 200, down: bool = False) -> None:
        self.sizes, self.room = sizes_of(chain), room
        unit = max(1, room // slots)
        self.grid = (unit, 0 if down else unit - 1, -(-room // unit) if down else room // unit)
        # A kind for the bare output of each stage, and one for each of its options; the chain's input takes no bytes
        # here.
        counts = [1, *(1 + len(step.choices) for step in chain.steps)]
        each = [
            0,
            *(size for step in chain.steps for size in (step.output_bytes, *(o.saved_bytes for o in step.choices))),
        ]
        self.kinds = np.cumsum([0, *counts]).astype(np.int64), np.array(each, np.int64)

    def table(self, price: float) -> "PricedTable":
        """Return what `_joint` reads at a price in seconds for each byte that leaves."""
        from trainwright.plan.memory._joint import fill_priced_table

        return self.kinds, fill_priced_table(self.sizes, self.kinds, self.grid, price), self.grid, price

    def solve(self, price: float) -> PricedPlan | None:
        """Return the best plan at a price; None if there is none."""
        from trainwright.plan.memory._joint import no_forced_choices, walk_priced_table

        if self.room < 0:
            return None
        rows, sums, _ = walk_priced_table(
            self.sizes, self.table(price), no_forced_choices(self.sizes.no_grad_forward.size)
        )
        if not len(rows):
            return None
        return PricedPlan(rows=rows, price=price, seconds=float(sums[0]), bytes=float(sums[1]))


_KINDS = (
    OperationKind.FORWARD_ALL,
    OperationKind.FORWARD_KEEP,
    OperationKind.FORWARD_DROP,
    OperationKind.BACKWARD,
    OperationKind.DELETE,
    OperationKind.OFFLOAD,
    OperationKind.PREFETCH,
)


def operations_of(rows: Ints) -> tuple[Operation, ...]:
    """Return what rows of `_joint` stand for."""
    return tuple(
        Operation(_KINDS[kind], stage, None, option if kind == 0 else 0)
        if kind < 4
        else Operation(_KINDS[kind], stage, Value.OUTPUT if option < 0 else Value.SAVED)
        for kind, stage, option in rows.tolist()
    )


def rows_of(operations: Sequence[Operation]) -> Ints:
    """Return operations as rows of `_joint`."""
    moved = {None: 0, Value.OUTPUT: -1, Value.SAVED: 0}
    return np.array(
        [(_KINDS.index(each.kind), each.stage, each.option or moved[each.value]) for each in operations], np.int64
    ).reshape(-1, 3)
