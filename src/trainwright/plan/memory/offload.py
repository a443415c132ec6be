"""Rematerialisation and offloading together: plans for more room than there is, with the copies that make them fit.

The best persistent plan of a larger room recomputes less; where the bytes do not suffice, the values whose next reader
is farthest leave for the host when they are made (Belady's rule) and come back, in the order of need, as early as they
fit, or a little before they are needed (`copy_schedule.place_copies`). So plans of several rooms, from the room that
there is to that in which all is kept, trade recomputation for copies.

They do not know when copies end, so `phases` changes the fastest few, the plan without copies and the one that
recomputes nothing, and keeps what a compiled simulator finds faster. `simulate` has the last word; with a plan without
copies among the candidates, offloading never loses time.
"""

import heapq
import math

import numpy as np

from trainwright.kernels import Ints
from trainwright.model.chain import Chain
from trainwright.plan.memory.copy_schedule import fastest_schedule
from trainwright.plan.memory.known_plans import keep_all
from trainwright.plan.memory.operations import PREFETCH, Link, Operation, operations_of, rows_of
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.memory.phases import HURRIES, anneal_all, phases_of, save_everything
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.sizes import sizes_of

__all__ = ["plan_offload"]

_SLOTS = 200
_ROOMS = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Shares of the room for which persistent plans are made."""
_NOTHING = 1e-9
_SEEDS = 4
"""How many of the fastest of these are annealed."""


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
    room, sizes, n = budget_bytes - chain.fixed_bytes, sizes_of(chain), len(chain.steps)
    larger = [solve_persistent(chain, chain.fixed_bytes + int(share * room), slots=_SLOTS) for share in _ROOMS]
    candidates = [start, lowest, keep_all(chain), *(each.operations for each in larger if each is not None)]
    seeds: list[tuple[float, int, Ints]] = []
    # Each carried out with its copies in the fastest way.
    for number, operations in enumerate(dict.fromkeys(candidates)):
        if operations is None:
            continue
        rows = rows_of(operations)
        rows = rows[rows[:, 0] != PREFETCH]  # values come back where the schedule says
        found, seconds = fastest_schedule(sizes, (room, link.rates), HURRIES, rows)
        if math.isfinite(seconds):
            accept(operations_of(found))
            seeds.append((seconds, number, rows))
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
