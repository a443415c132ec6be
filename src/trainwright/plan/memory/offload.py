"""Rematerialisation and offloading together: what a priced programme chooses, placed in time, and annealed from there.

In the programme bytes that leave have a price. D(s, t, x, m) is the least time of stages s..t forward and backward in m
slots, given what stage s - 1 has left (x: its bare output, or what one of its options saves, W bytes, paid inside m),
plus `price` seconds for each byte that waits on the host meanwhile. As in the persistent programme, either s is saved
or forwards go on to a split s'; and while what comes behind runs, W stays or leaves (the transitions of POFO, Beaumont
et al., NeurIPS 2021):

    D = min of
      over options of s:   forward_s + backward_s + min(D(s+1, t, saved_s, m - W), D(s+1, t, saved_s, m) + price W)
      over s' in s+1..t:   plain forwards s..s'-1 + D(s, s'-1, x, m)
                             + min(D(s', t, a^{s'-1}, m - W), D(s', t, a^{s'-1}, m) + price W)

Copies cost nothing here but their price, and free their bytes at once: at a price of zero the link is endless, at a
high one nothing leaves. The prices that matter are those at which two plans cost the same; they are found by taking the
price between two plans that are known and asking for a better one, as for the corners of a convex hull. Because bytes
are not free before they have left, this is done for several shares of the room. A value leaves when it is made and
comes back, in the order of need, as early as it fits, or a little before it is needed; where operations still need more
bytes than there are, the values whose next reader is farthest leave too (Belady's rule).

The programme does not know when copies end, so `phases` changes the fastest few, the plan without copies and the one
that recomputes nothing, and keeps what a compiled simulator finds faster. `simulate` has the last word; with a plan
without copies among the candidates, offloading never loses time.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainwright.kernels import Ints
from trainwright.model.chain import Chain
from trainwright.plan.memory._dynamic_programs import PricedTable, choose_priced, fill_priced_table
from trainwright.plan.memory.copy_schedule import fastest_schedule
from trainwright.plan.memory.known_plans import keep_all
from trainwright.plan.memory.operations import Link, Operation, operations_of, rows_of
from trainwright.plan.memory.persistent import PlanNode, rows_of_nodes
from trainwright.plan.memory.phases import HURRIES, anneal_all, phases_of, rates_of, save_everything
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.sizes import sizes_of

__all__ = ["PricedPlan", "PricedProgram", "plan_offload", "price_hull"]

_SLOTS = 200
_PRICES = 10
_ROOMS = (1.0, 0.95, 0.9, 0.8, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Shares of the room for which the priced programme plans: less, for what is still leaving, or more."""
_SAME = 1e-3
_LONG, _PRICES_LONG, _ROOMS_LONG = 50, 6, (1.0, 0.9, 1.2)
"""Beyond so many stages, where each solve takes long: fewer prices, fewer rooms."""
_DEAR = 1e3
"""Seconds a byte: a price at which nothing leaves that need not."""
_NOTHING = 1e-9
_SEEDS = 3
"""How many of the programme's fastest plans are annealed."""


def plan_offload(
    chain: Chain,
    budget_bytes: int,
    link: Link,
    *,
    start: tuple[Operation, ...] | None = None,
    lowest: tuple[Operation, ...] | None = None,
    search_seconds: float = math.inf,
) -> tuple[Operation, ...] | None:
    """Return the fastest plan found within a budget with copies over a link; None if none was found.

    `start` is a plan without copies that fits, if there is one, `lowest` one with copies that may.
    """
    best, least = start, math.inf
    if start is not None:
        least = simulate(chain, start, budget_bytes=budget_bytes).seconds

    def accept(operations: tuple[Operation, ...]) -> None:
        nonlocal best, least
        simulation = simulate(chain, operations, budget_bytes=budget_bytes, link=link)
        if simulation.fits and simulation.seconds < least:
            best, least = operations, simulation.seconds

    # A plan of the least budget may be all there is.
    if lowest is not None:
        accept(lowest)
    room, sizes = budget_bytes - chain.fixed_bytes, sizes_of(chain)
    n, whole = len(chain.steps), simulate(chain, keep_all(chain)).peak_bytes - chain.fixed_bytes
    seeds: list[tuple[float, int, Ints]] = []
    # The corners of the hull in several rooms, each carried out with its copies in the fastest way.
    for share in _ROOMS if n <= _LONG else _ROOMS_LONG:
        # A room in which everything fits plans nothing; larger ones neither.
        if share > 1 and share * room > whole:
            continue
        slots = _SLOTS if n <= _LONG else max(60, _SLOTS * _LONG // n)
        programme = PricedProgram(chain, int(share * room), slots=slots)
        for priced in price_hull(programme, prices=_PRICES if n <= _LONG else _PRICES_LONG):
            rows, seconds = fastest_schedule(sizes, (room, rates_of(link)), HURRIES, priced.rows)
            if math.isfinite(seconds):
                accept(operations_of(rows))
                seeds.append((seconds, len(seeds), priced.rows))
    # Change the fastest few; nothing is faster than every stage once, by its fastest option.
    quickest = float(np.minimum.reduceat(sizes.forward + sizes.backward, sizes.first[:-1]).sum())
    if least <= quickest * (1 + _NOTHING):
        return best
    starts = [phases_of(n, rows) for _, _, rows in heapq.nsmallest(_SEEDS, seeds)]
    starts += [] if start is None else [phases_of(n, rows_of(start))]
    for seconds, rows in anneal_all(sizes, room, link, [*starts, save_everything(n)], search_seconds):
        if seconds < least:
            accept(operations_of(rows))
    return best


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedPlan:
    """A plan as rows of `_dynamic_programs`, which say what leaves too, and what it takes."""

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

    A table takes O(L^3 slots) time and O(L^2 slots) bytes.
    """

    def __init__(self, chain: Chain, room: int, *, slots: int = 200) -> None:
        self.sizes, self.room = sizes_of(chain), room
        unit = max(1, room // slots)
        self.grid = (unit, unit - 1, room // unit)
        # A kind for the bare output of each stage and for each of its options; the chain's input takes no bytes here.
        counts = [1, *(1 + len(step.choices) for step in chain.steps)]
        each = [
            0,
            *(size for step in chain.steps for size in (step.output_bytes, *(o.saved_bytes for o in step.choices))),
        ]
        self.kinds = np.cumsum([0, *counts]).astype(np.int64), np.array(each, np.int64)

    def table(self, price: float) -> PricedTable:
        """Return what `_dynamic_programs` reads at a price in seconds for each byte that leaves."""
        return self.kinds, fill_priced_table(self.sizes, self.kinds, self.grid, price), self.grid, price

    def solve(self, price: float) -> PricedPlan | None:
        """Return the best plan at a price; None if there is none."""
        if self.room < 0:
            return None
        sizes, priced, (unit, up, slots) = self.sizes, self.table(price), self.grid
        first_kind, weight = self.kinds
        last = len(sizes.no_grad_forward) - 1
        if not np.isfinite(priced[1][0, last, slots]):
            return None
        seconds, moved = 0.0, 0.0

        def choose(node: PlanNode) -> tuple[int, int, PlanNode, int | None]:
            nonlocal seconds, moved
            s, t, m, kind = node
            option, split, leaves = choose_priced(sizes, priced, node)
            if leaves:
                moved += float(weight[kind])
            else:
                m -= int(weight[kind] + up) // unit
            leaving = int(kind - first_kind[s] - 1) if leaves else None
            if split >= 0:
                for stage in range(s, split):
                    seconds += float(sizes.no_grad_forward[stage])
                return -1, split, PlanNode(split, t, m, int(first_kind[split])), leaving
            seconds += float(sizes.forward[option] + sizes.backward[option])
            option -= int(sizes.first[s])
            return option, -1, PlanNode(s + 1, t, m, int(first_kind[s + 1]) + 1 + option), leaving

        rows = rows_of_nodes(PlanNode(0, last, slots), choose)
        return PricedPlan(rows=rows, price=price, seconds=seconds, bytes=moved)


def price_hull(programme: PricedProgram, *, prices: int = _PRICES) -> Iterator[PricedPlan]:
    """Yield the plans that are best at some price, from endless links on; at most so many prices are asked for."""
    most, least = programme.solve(0.0), programme.solve(_DEAR)
    if most is None or least is None:
        return
    yield from (most, least)
    pairs = [(most.seconds - least.seconds, 0, most, least)]  # the widest first
    for count in range(1, prices):
        if not pairs:
            return
        _, _, more, less = heapq.heappop(pairs)
        # Plans that cost nearly the same have nothing between them worth a price.
        if more.bytes <= less.bytes or less.seconds - more.seconds <= _SAME * less.seconds:
            continue
        # At this price both plans cost the same; a plan that costs less lies between them on the hull.
        price = (less.seconds - more.seconds) / (more.bytes - less.bytes)
        found = programme.solve(price)
        if found is None or found.value >= (more.seconds + price * more.bytes) * (1 - 1e-6):
            continue
        yield found
        for one, other in ((more, found), (found, less)):
            heapq.heappush(pairs, (one.seconds - other.seconds, 2 * count + (one is found), one, other))
