"""Rematerialisation and offloading together: what the priced programme chooses, placed in time, and moves from there.

At every price of a byte that leaves, the programme of `joint` says what is kept, sent to the host, and run again. The
prices that matter are those at which two plans cost the same; they are found by taking the price between two plans
that are known and asking for a better one, as for the corners of a convex hull. Because bytes are not free before
they have left, this is done for several shares of the room. A value leaves when it is made and comes back, in the
order of need, as early as it fits, or a little before it is needed; where operations still need more bytes than there
are, the values whose next reader is farthest leave too (Belady's rule).

The programme does not know when copies end, so the fastest few are changed: annealing forces one decision of the
plan's tree after another (an option, a split, whether what is held leaves, the memory of a part), everything else
being read off the table again, and keeps what a compiled simulator finds faster. From these, from the plan without
copies and from one that recomputes nothing, `phases` goes on to plans that are not persistent. `simulate` has the last
word; with a plan without copies among the candidates, offloading never loses time.
"""

import heapq
import math
from collections.abc import Iterator

import numpy as np

from trainwright.kernels import Ints
from trainwright.model.chain import Chain
from trainwright.plan.memory.checkpointing import keep_all
from trainwright.plan.memory.joint import PricedPlan, PricedProgram, operations_of, rows_of
from trainwright.plan.memory.link import Link
from trainwright.plan.memory.operations import Operation
from trainwright.plan.memory.phases import anneal_all, phases_of, save_everything
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.sizes import sizes_of
from trainwright.randomness import rng

__all__ = ["lower_bound", "plan_offload", "price_hull"]

_SLOTS = 200
_PRICES = 10
_ROOMS = (1.0, 0.95, 0.9, 0.8, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Shares of the room for which the priced programme plans: less, for what is still leaving, or more."""
_SAME = 1e-3
_LONG, _PRICES_LONG, _ROOMS_LONG = 50, 6, (1.0, 0.9, 1.2)
"""Beyond so many stages, where each solve takes long: fewer prices, fewer rooms."""
_DEAR = 1e3
"""Seconds a byte: a price at which nothing leaves that need not."""
_HURRIES = np.array([math.inf, 3.0, 1.5])
_WHOLE = 40
"""Stages from which on every try is made; shorter chains have fewer decisions."""
_NOTHING = 1e-9
_CLIMBS = ((6, 3000), (2, 8000))
"""How many of the fastest are changed, and how often each is tried; then the fastest of them, more often."""


def plan_offload(
    chain: Chain,
    budget_bytes: int,
    link: Link,
    *,
    start: tuple[Operation, ...] | None = None,
    lowest: tuple[Operation, ...] | None = None,
) -> tuple[Operation, ...] | None:
    """Return the fastest plan found within a budget with copies over a link; None if none was found.

    `start` is a plan without copies that fits, if there is one, `lowest` one with copies that may.
    """
    from trainwright.plan.memory._joint import anneal_choices, no_forced_choices, walk_priced_table
    from trainwright.plan.memory.copy_schedule import fastest_schedule

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
    limits = (room, (*link.rates(outgoing=True, incoming=False), *link.rates(outgoing=True, incoming=True)))
    whole = simulate(chain, keep_all(chain)).peak_bytes - chain.fixed_bytes
    short = len(chain.steps) <= _LONG
    seeds: list[tuple[float, int, PricedProgram, float, Ints]] = []
    # The corners of the hull in several rooms, each carried out with its copies in the fastest way.
    for share in _ROOMS if short else _ROOMS_LONG:
        if share > 1 and share * room > whole:
            continue
        programme = PricedProgram(chain, int(share * room), slots=_slot_count(chain))
        for priced in price_hull(programme, prices=_PRICES if short else _PRICES_LONG):
            rows, seconds = fastest_schedule(sizes, limits, _HURRIES, priced.rows)
            if math.isfinite(seconds):
                accept(operations_of(rows))
                seeds.append(
                    (seconds, len(seeds), programme, priced.price, no_forced_choices(sizes.no_grad_forward.size))
                )
    # Annealing costs more on long chains, and short ones have fewer decisions.
    fewer = min(1.0, (_LONG / len(chain.steps)) ** 2)
    scale = min(fewer, len(chain.steps) / _WHOLE)
    quickest = float(np.minimum.reduceat(sizes.forward + sizes.backward, sizes.first[:-1]).sum())
    # Change the decisions of the fastest few; stop where nothing can be faster.
    for count, tries in _CLIMBS:
        if least <= quickest * (1 + _NOTHING):
            break
        changed = []
        for _, number, programme, price, forced in heapq.nsmallest(count, seeds):
            draws = rng(number, "copies moves", count).random((int(scale * tries), 14))
            rows, seconds = anneal_choices(sizes, programme.table(price), (limits, _HURRIES), forced, draws)
            accept(operations_of(rows))
            changed.append((seconds, number, programme, price, forced))
        seeds = changed
    if least <= quickest * (1 + _NOTHING):
        return best
    # Go on from these trees without persistence.
    starts = [
        walk_priced_table(sizes, programme.table(price), forced)[0]
        for _, _, programme, price, forced in sorted(seeds, key=lambda each: each[:2])
    ]
    phases = [
        phases_of(sizes.no_grad_forward.size, rows) for rows in (*starts, *([] if start is None else [rows_of(start)]))
    ]
    for seconds, rows in anneal_all(
        sizes, (limits, _HURRIES), [*phases, save_everything(sizes.no_grad_forward.size)], scale=scale
    ):
        if seconds < least:
            accept(operations_of(rows))
    return best


def lower_bound(chain: Chain, budget_bytes: int, link: Link) -> float:
    """Return what no plan is faster than whose values stay, or wait on the host, until their backward.

    Of Lagrange: at every price, D / (1 + price rate) of `joint` with sizes rounded down, a link of `rate` both ways
    being as fast as its slower direction needs; the best of the prices, by golden sections.
    """
    rate = min(link.to_host, link.to_device)
    if math.isinf(rate):
        return 0.0
    programme = PricedProgram(chain, budget_bytes - chain.fixed_bytes, slots=_slot_count(chain), down=True)

    def bound(exponent: float) -> float:
        price = math.exp(exponent) / rate
        found = programme.solve(price)
        return 0.0 if found is None else found.value / (1 + price * rate)

    # Golden sections over the logarithm of the price, in units of what the link takes for a byte.
    low, high = math.log(1e-3), math.log(10.0)
    best = 0.0
    for _ in range(14):
        left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
        one, other = bound(left), bound(right)
        best = max(best, one, other)
        low, high = (low, right) if one > other else (left, high)
    return best


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


def _slot_count(chain: Chain) -> int:
    return _SLOTS if len(chain.steps) <= _LONG else max(60, _SLOTS * _LONG // len(chain.steps))
