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

from dataclasses import dataclass

import numpy as np

from trainwright.memory.chain import Chain
from trainwright.memory.operations import Kind, Operation, Value
from trainwright.memory.sizes import sizes_of

__all__ = ["Priced", "solve_priced"]

Leaving = frozenset[tuple[Value, int, int]]
"""(value, stage, place of the operation behind which it leaves)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """Operations without copies, which of their values leave and when, and the value of the programme."""

    operations: tuple[Operation, ...]
    leaving: Leaving
    seconds: float
    """Of the operations alone."""
    value: float
    """With the price of what leaves."""
    bytes: int
    """Of what leaves, each time."""


def solve_priced(chain: Chain, room: int, price: float, *, slots: int = 200, down: bool = False) -> Priced | None:
    """Return the best plan in `room` bytes beside the fixed ones, at a price in seconds for each byte that leaves.

    `down` rounds sizes down and the room up, for a bound. O(L^3 slots) time, O(L^2 slots) bytes; None if infeasible.
    """
    from trainwright.memory._joint import fill, walk

    if room < 0:
        return None
    sizes = sizes_of(chain)
    unit = max(1, room // slots)
    grid = (unit, 0 if down else unit - 1, -(-room // unit) if down else room // unit)
    counts = [1, *(1 + len(step.choices) for step in chain.steps)]
    kinds = np.cumsum([0, *counts]).astype(np.int64)
    each = [0, *(size for step in chain.steps for size in (step.output_bytes, *(o.saved_bytes for o in step.choices)))]
    tables = (kinds, np.array(each, np.int64))
    table = fill(sizes, tables, grid, price)
    rows, sums = walk(sizes, tables, table, grid, price)
    if not len(rows):
        return None
    operations: list[Operation] = []
    leaving: set[tuple[Value, int, int]] = set()
    for kind, stage, option in rows.tolist():
        if kind == 5:
            leaving.add((Value.OUTPUT if option < 0 else Value.SAVED, stage, len(operations) - 1))
        else:
            operations.append(_operation(kind, stage, option))
    return Priced(
        operations=tuple(operations),
        leaving=frozenset(leaving),
        seconds=float(sums[0]),
        value=float(sums.sum()),
        bytes=sum(
            chain.steps[stage - 1].output_bytes if value is Value.OUTPUT else _saved(chain, operations, stage, place)
            for value, stage, place in leaving
        ),
    )


def _saved(chain: Chain, operations: list[Operation], stage: int, place: int) -> int:
    """Return the bytes that the last forward of a stage up to a place has saved."""
    last = next(
        each for each in reversed(operations[: place + 1]) if each.stage == stage and each.kind is Kind.FORWARD_ALL
    )
    return chain.steps[stage - 1].choices[last.option].saved_bytes


_KINDS = (Kind.FORWARD_ALL, Kind.FORWARD_KEEP, Kind.FORWARD_DROP, Kind.BACKWARD, Kind.DELETE)


def _operation(kind: int, stage: int, option: int) -> Operation:
    if kind == 0:
        return Operation(Kind.FORWARD_ALL, stage, None, option)
    return Operation(_KINDS[kind], stage, Value.OUTPUT if kind == 4 else None)
