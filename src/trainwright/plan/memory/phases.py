"""Joint plans that need not be persistent: what runs in each phase, everything else following from that.

Phase d lies between the arrivals of two gradients and ends with the backward of stage d; the first is the whole
forward. In a phase any stages may run, in their order (as in Checkmate). That, and which values are to leave, is all
that a plan says: a value lives from where it is made to its last reader, and where the bytes do not suffice, values
leave for the host by the rule of `copy_schedule.place_copies`. So a value may be dropped and made again, or saved
without its input, which no program over segments allows.

Annealing changes digits: a stage's kind in the forward, a run of stages in a phase near their backward or anywhere,
a value that leaves. Large values are changed more often.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from trainwright.kernels import Floats, Ints
from trainwright.plan.memory.sizes import Sizes
from trainwright.randomness import rng

__all__ = ["Phases", "anneal_all", "phases_of", "save_everything"]

Phases = tuple[Ints, Ints]
"""What each phase makes and what leaves in it; see `_phases`."""
_ROUNDS = ((4, 4000), (2, 12000), (1, 24000))
"""How many of the fastest are changed, and how often each is tried."""
_HEAT = 2e-4
_NUMBERS = 20


def phases_of(n: int, rows: Ints) -> Phases:
    """Return the phases of rows for n stages; of two runs of a stage in one phase the last counts."""
    from trainwright.plan.memory.copy_schedule import BACKWARD, FORWARD_ALL, OFFLOAD

    made, away, d = np.zeros((n + 1, n + 1), np.int64), np.zeros((n + 1, n + 1), np.int64), n
    for kind, stage, option in rows.tolist():
        if kind < BACKWARD:
            made[d, stage] = 2 + option if kind == FORWARD_ALL else 1
        elif kind == OFFLOAD:
            away[d, stage] = 1
        d -= kind == BACKWARD
    return made, away


def save_everything(n: int) -> Phases:
    """Return the phases in which everything is saved and nothing runs again."""
    made = np.zeros((n + 1, n + 1), np.int64)
    made[n, 1:] = 2
    return made, np.zeros((n + 1, n + 1), np.int64)


def anneal_all(
    sizes: Sizes, within: tuple[tuple[int, tuple[float, float, float, float]], Floats], starts: Iterable[Phases],
    *, scale: float,
) -> Iterator[tuple[float, Ints]]:  # fmt: skip
    """Yield faster and faster lists and their seconds; `scale` times as many tries as otherwise."""
    from trainwright.plan.memory._phases import anneal_phases

    plans = [(math.inf, number, made, away) for number, (made, away) in enumerate(starts)]
    for count, tries in _ROUNDS:
        changed = []
        for _, number, made, away in sorted(plans, key=lambda each: each[:2])[:count]:
            draws = rng(number, "phases", count).random((int(scale * tries), _NUMBERS))
            rows, seconds = anneal_phases(sizes, within, (made, away), draws, _HEAT)
            yield seconds, rows
            changed.append((seconds, number, made, away))
        plans = changed
