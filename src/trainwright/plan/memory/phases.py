"""Plans that need not be persistent: what runs in each phase, everything else following from that.

Phase d lies between the arrivals of two gradients and ends with the backward of stage d; the first is the whole
forward. In a phase any stages may run, in their order (as in Checkmate). That, and which values are to leave, is all
that a plan says: a value lives from where it is made to its last reader, and where the bytes do not suffice, values
leave for the host by the rule of `copy_schedule.place_copies`. So a value may be dropped and made again, or saved
without its input, which no program over segments allows.

Annealing changes digits: a stage's kind in the forward, a run of stages in a phase near their backward or anywhere,
a value that leaves. Large values are changed more often. Without a link, copies take for ever, so that plans with
fewer of them are faster and those that the simulator accepts have none.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from trainwright.kernels import Ints
from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import (
    BACKWARD,
    FORWARD_ALL,
    OFFLOAD,
    Link,
    Operation,
    operations_of,
    rows_of,
)
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.sizes import Sizes, sizes_of
from trainwright.randomness import rng

__all__ = ["HURRIES", "Phases", "anneal_all", "improve_plan", "phases_of", "rates_of", "save_everything"]

Phases = tuple[Ints, Ints]
"""What each phase makes and what leaves in it; see `_phases`."""
HURRIES = np.array([math.inf, 3.0, 1.5])
"""How early copies back begin, for `copy_schedule.place_copies`."""
_ROUNDS = ((4, 4000), (2, 12000), (1, 24000))
"""How many of the fastest are changed, and how often each is tried."""
_ALL_TRIES = sum(count * tries for count, tries in _ROUNDS)
_FEW = 500
"""Tries of which nothing comes."""
_STAGE_SECONDS = 5e-6
"""Of a try, for each stage."""
_HEAT = 2e-4
_NUMBERS = 20
_NO_LINK = Link.of(1e-9)
_WHOLE, _LONG = 40, 50
"""Stages from which on every try is made, for shorter chains have fewer decisions; beyond the second they take long."""


def improve_plan(
    chain: Chain, budget_bytes: int, operations: tuple[Operation, ...], *, search_seconds: float = math.inf
) -> tuple[Operation, ...]:
    """Return a plan without copies that is at least as fast within the budget as the given one, which must be valid."""
    best, least = operations, simulate(chain, operations, budget_bytes=budget_bytes).seconds
    sizes, n = sizes_of(chain), len(chain.steps)
    starts = [phases_of(n, rows_of(operations)), save_everything(n)]
    for seconds, rows in anneal_all(sizes, budget_bytes - chain.fixed_bytes, _NO_LINK, starts, search_seconds):
        if seconds < least:
            found = operations_of(rows)
            simulation = simulate(chain, found, budget_bytes=budget_bytes)
            if simulation.fits and simulation.seconds < least:
                best, least = found, simulation.seconds
    return best


def phases_of(n: int, rows: Ints) -> Phases:
    """Return the phases of rows for n stages; of two runs of a stage in one phase the last counts."""
    made, away, d = np.zeros((n + 1, n + 1), np.int64), np.zeros((n + 1, n + 1), np.int64), n
    for kind, stage, option in rows.tolist():
        if kind < BACKWARD:
            made[d, stage] = 2 + option if kind == FORWARD_ALL else 1
        elif kind == OFFLOAD:
            away[d, stage] = 1
        # The backward of a stage ends its phase.
        d -= kind == BACKWARD
    return made, away


def save_everything(n: int) -> Phases:
    """Return the phases in which everything is saved and nothing runs again."""
    made = np.zeros((n + 1, n + 1), np.int64)
    made[n, 1:] = 2
    return made, np.zeros((n + 1, n + 1), np.int64)


def rates_of(link: Link) -> tuple[float, float, float, float]:
    """Return the rates of a link as kernels read them: each direction alone, then each while both are busy."""
    return (*link.rates(outgoing=True, incoming=False), *link.rates(outgoing=True, incoming=True))


def anneal_all(
    sizes: Sizes, room: int, link: Link, starts: Iterable[Phases], search_seconds: float = math.inf
) -> Iterator[tuple[float, Ints]]:
    """Yield faster and faster lists in `room` bytes, and their seconds; the first starts are changed first."""
    from trainwright.plan.memory._phases import anneal_phases

    n, within = sizes.no_grad_forward.size, ((room, rates_of(link)), HURRIES)
    scale = min((_LONG / n) ** 2, n / _WHOLE, 1.0, search_seconds / (n * _STAGE_SECONDS * _ALL_TRIES))
    if scale * _ALL_TRIES < _FEW:
        return
    plans = [(math.inf, number, made, away) for number, (made, away) in enumerate(starts)]
    for count, tries in _ROUNDS:
        changed = []
        for _, number, made, away in sorted(plans, key=lambda each: each[:2])[:count]:
            draws = rng(number, "phases", count).random((int(scale * tries), _NUMBERS))
            rows, seconds = anneal_phases(sizes, within, (made, away), draws, _HEAT)
            yield seconds, rows
            changed.append((seconds, number, made, away))
        plans = changed
