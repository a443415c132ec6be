"""Improves plans that need not be persistent by simulated annealing over what runs in each phase.

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

from trainwright.kernels import Floats, Ints, compiled
from trainwright.model.chain import Chain
from trainwright.plan.memory.copy_schedule import fastest_schedule
from trainwright.plan.memory.operations import (
    BACKWARD,
    DELETE,
    FORWARD_ALL,
    FORWARD_KEEP,
    OFFLOAD,
    Link,
    Operation,
    operations_of,
    rows_of,
)
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.simulation_kernel import Limits
from trainwright.plan.memory.sizes import Sizes, sizes_of
from trainwright.randomness import rng

__all__ = ["HURRIES", "anneal_all", "improve_plan", "phases_of", "save_everything"]


@compiled
def list_rows(sizes: Sizes, made: Ints, away: Ints) -> tuple[Ints, float]:
    """Return the rows of phases, as `copy_schedule.place_copies` reads them, and the seconds of their operations.

    Each forward and backward reads what was made last; a value lives from where it is made to its last reader, and
    what nobody reads is not made.
    """
    n = sizes.no_grad_forward.size
    most = n
    for d in range(1, n + 1):
        for i in range(1, d + 1):
            most += made[d, i] > 0
        most += 1
    # An operation: digit (0 a backward), stage, phase, the operation that made what it reads, the one that saved what a
    # backward needs, and the last operation that reads what it makes.
    ops = np.empty((most, 6), np.int64)
    ops[:, 3:] = -1
    count = 0
    o = sizes.first[:-1]  # what saves no more than the output is as good as it, and better
    same = (
        (sizes.saved[o] <= sizes.output[1:])
        & (sizes.forward[o] <= sizes.no_grad_forward)
        & (sizes.temporary[o] <= sizes.no_grad_temporary)
    )
    # Forwards of each phase in order, then its backward; `last` made the value of a stage, `saved` its saved values.
    last, saved = np.full(n + 1, -1), np.full(n + 1, -1)
    for d in range(n, 0, -1):
        for i in range(1, d + 1):
            digit = made[d, i]
            # The stage whose backward comes must be saved by then.
            if (i == d and (digit == 1 or (digit == 0 and saved[d] < 0))) or (digit == 1 and same[i - 1]):
                digit = 2
            if digit:
                ops[count, 0], ops[count, 1], ops[count, 2], ops[count, 3] = digit, i, d, last[i - 1]
                last[i] = count
                if digit > 1:
                    saved[i] = count
                count += 1
        ops[count, 0], ops[count, 1], ops[count, 2], ops[count, 3], ops[count, 4] = 0, d, d, last[d - 1], saved[d]
        count += 1
    # Backwards are needed, and whatever a needed operation reads; from the end, the first reader found is the last one.
    needed = np.zeros(count, np.bool_)
    kept = np.zeros(count, np.bool_)
    after = np.full((count, 2), -1)  # next reader of the source, of the saved values
    for at in range(count - 1, -1, -1):
        if ops[at, 0] == 0:
            needed[at] = True
            source = ops[at, 4]
            kept[source] = needed[source] = True
            if ops[source, 5] < 0:
                ops[source, 5] = at
        if needed[at] and ops[at, 3] >= 0:
            source = ops[at, 3]
            needed[source] = True
            after[at, 0] = after[source, 1]
            after[source, 1] = at
            if ops[source, 5] < 0:
                ops[source, 5] = at
    # Write the needed operations, each with the deletion or the departure of what it was the last to read.
    rows = np.empty((3 * count, 3), np.int64)
    filled, spent = 0, 0.0
    bare = np.zeros(count, np.bool_)
    for at in range(count):
        if not needed[at]:
            continue
        digit, i, d, source = ops[at, 0], ops[at, 1], ops[at, 2], ops[at, 3]
        if digit == 0:
            rows[filled, 0], rows[filled, 1], rows[filled, 2] = BACKWARD, i, 0
            spent += sizes.backward[sizes.first[i - 1] + ops[ops[at, 4], 0] - 2]
        else:
            each = sizes.first[i - 1] + digit - 2
            # Saved values that no backward needs are made as a bare output.
            bare[at] = digit == 1 or not kept[at]
            if bare[at]:
                rows[filled, 0], rows[filled, 1], rows[filled, 2] = FORWARD_KEEP, i, 0
                spent += sizes.no_grad_forward[i - 1]
            else:
                rows[filled, 0], rows[filled, 1], rows[filled, 2] = FORWARD_ALL, i, digit - 2
                spent += sizes.forward[each]
        filled += 1
        if source >= 0:
            if ops[source, 5] == at:
                rows[filled, 0], rows[filled, 1] = DELETE, i - 1
                rows[filled, 2] = -1 if bare[source] else ops[source, 0] - 2
                filled += 1
            elif away[d, i - 1] and (after[at, 0] < 0 or ops[after[at, 0], 2] != d):
                rows[filled, 0], rows[filled, 1] = OFFLOAD, i - 1
                rows[filled, 2] = -1 if bare[source] else ops[source, 0] - 2
                filled += 1
    return rows[:filled], spent


@compiled
def anneal_phases(
    sizes: Sizes, within: tuple[Limits, Floats], phases: tuple[Ints, Ints], draws: Floats, heat: float
) -> tuple[Ints, float]:
    """Return the fastest list found, and its seconds, by changing digits; `phases` end as those of it.

    One try for each row of `draws`, 20 numbers in [0, 1); a change that loses a share x of the
    time is kept with probability exp(-x / heat), `heat` falling to zero.
    """
    (limits, hurries), (made, away) = within, phases
    n, tries = sizes.no_grad_forward.size, len(draws)
    rows, _ = list_rows(sizes, made, away)
    best, least = fastest_schedule(sizes, limits, hurries, rows)
    spent, kept_made, kept_away = least, made.copy(), away.copy()
    # Large values are changed more often: stages are drawn in proportion to the root of their bytes.
    weights = np.sqrt(sizes.saved[sizes.first[:-1]].astype(np.float64)) + 1.0
    weights = np.cumsum(weights) / weights.sum()
    undo = np.empty((6 * n + 6, 4), np.int64)
    for turn in range(tries):
        draw = draws[turn]
        # Mostly one change, at times two or three: some gains need several at once.
        changes = 1 if draw[0] < 0.5 else (2 if draw[0] < 0.85 else 3)
        many = 0
        for each in range(changes):
            what, where, near, value, more, span = draw[2 + 6 * each : 8 + 6 * each]
            # A stage i, and a phase d: the whole forward, any phase, or one shortly before the backward of i.
            i = min(n, 1 + np.searchsorted(weights, more))
            d = n if near < 0.3 else i + int(where * (n - i + 1))
            if near > 0.45:
                # The logarithm of a uniform number is exponential: d is mostly near i, rarely far from it.
                d = min(n, i + int(-1.5 * np.log(1 - where)))
            # Either toggle whether the value leaves ..
            if what < 0.3:
                undo[many, 0], undo[many, 1], undo[many, 2], undo[many, 3] = 1, d, i, away[d, i]
                many += 1
                away[d, i] = 1 - away[d, i]
                continue
            if what > 0.85:  # a segment that runs again as a whole before its last backward, or no more
                for j in range(max(1, i - int(-3.0 * np.log(1 - span))), i + 1):
                    for at, new in ((n, 1 if value < 0.5 else 2), (i, 2 if value < 0.5 else 0)):
                        undo[many, 0], undo[many, 1], undo[many, 2], undo[many, 3] = 0, at, j, made[at, j]
                        many += 1
                        made[at, j] = new
                continue
            # .. or draw new digits for one stage, or for a run of stages, in that phase.
            length = 1 if what < 0.7 else min(i, 1 + int(-2.0 * np.log(1 - span)))
            fill = value < 0.5
            for j in range(i - length + 1, i + 1):
                options = sizes.first[j] - sizes.first[j - 1]
                old = made[d, j]
                if d == n or (what < 0.7 and fill):
                    new = 1 + int(span * (1 + options)) if what < 0.7 else (1 if fill else 2)
                elif what < 0.7:
                    new = 0
                elif fill:
                    new = 1 if j < i else 2 + int(value * 2 * options)
                else:
                    new = 0
                undo[many, 0], undo[many, 1], undo[many, 2], undo[many, 3] = 0, d, j, old
                many += 1
                made[d, j] = new
        # The seconds of the operations alone are a lower bound, so that many tries are refused without placing copies.
        rows, sums = list_rows(sizes, made, away)
        # -log(1 - draw) is exponential: a share x more of time passes with probability exp(-x / heat).
        limit = spent * (1 - heat * (1 - turn / tries) * np.log(1 - draw[1])) if spent < np.inf else np.inf
        found, time = rows[:0], np.inf
        if sums <= limit:
            found, time = fastest_schedule(sizes, limits, hurries, rows)
        # Accepted: the digits stay as they are, and the best are remembered.
        if len(found) and time <= limit:
            spent = time
            if time < least:
                best, least = found, time
                kept_made[:] = made
                kept_away[:] = away
        else:
            # In reverse order: two changes may have hit the same digit.
            for each in range(many - 1, -1, -1):
                of, d, i, old = undo[each]
                if of == 1:
                    away[d, i] = old
                else:
                    made[d, i] = old
    made[:] = kept_made
    away[:] = kept_away
    return best, least


Phases = tuple[Ints, Ints]
"""What each phase makes and what leaves in it.

`made` [n + 1, n + 1] has of phase d and stage i a digit: 0 nothing, 1 a bare output, 2 + o what option o saves. `away`
has of phase d and stage i whether the value of i leaves for the host after its last reader in that phase.
"""
HURRIES = np.array([math.inf, 3.0, 1.5])
"""How early copies back begin, for `copy_schedule.place_copies`."""
_ROUNDS = ((6, 4000), (2, 12000), (1, 24000))
"""How many of the fastest are changed, and how often each is tried."""
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


def anneal_all(
    sizes: Sizes, room: int, link: Link, starts: Iterable[Phases], search_seconds: float = math.inf
) -> Iterator[tuple[float, Ints]]:
    """Yield faster and faster lists in `room` bytes, and their seconds; the first starts are changed first."""
    n, within = sizes.no_grad_forward.size, ((room, link.rates), HURRIES)
    plans = [(math.inf, number, made, away) for number, (made, away) in enumerate(starts)]
    whole = sum(min(count, len(plans)) * tries for count, tries in _ROUNDS)
    scale = min((_LONG / n) ** 2, n / _WHOLE, 1.0, search_seconds / (n * _STAGE_SECONDS * whole))
    if scale * whole < _FEW:
        return
    for count, tries in _ROUNDS:
        changed = []
        for _, number, made, away in sorted(plans, key=lambda each: each[:2])[:count]:
            draws = rng(number, "phases", count).random((int(scale * tries), _NUMBERS))
            rows, seconds = anneal_phases(sizes, within, (made, away), draws, _HEAT)
            yield seconds, rows
            changed.append((seconds, number, made, away))
        plans = changed
