"""Kernel of the search among lists of operations themselves: rows are moved, added and dropped; see `lists`."""

import numpy as np

from trainwright.kernels import Floats, Ints, compiled
from trainwright.memory._placed import (
    BACKWARD,
    DELETE,
    FORWARD_ALL,
    FORWARD_DROP,
    FORWARD_KEEP,
    OFFLOAD,
    PREFETCH,
    Limits,
    seconds,
)
from trainwright.memory.sizes import Sizes

__all__ = ["polish"]

_ROW = 1e-9
"""Of two lists as fast the shorter is better: by so much of the time for each row."""


@compiled
def _insert(rows: Ints, count: int, at: int, row: tuple[int, int, int]) -> int:
    for each in range(count, at, -1):
        rows[each] = rows[each - 1]
    rows[at, 0], rows[at, 1], rows[at, 2] = row
    return count + 1


@compiled
def _remove(rows: Ints, count: int, at: int) -> int:
    for each in range(at, count - 1):
        rows[each] = rows[each + 1]
    return count - 1


@compiled
def _key(rows: Ints, at: int) -> int:
    """Return what a row makes or moves, as 2 stage + (1 if saved); 0 of a backward."""
    kind, stage, option = rows[at]
    if kind == BACKWARD:
        return 0
    return int(2 * stage + (kind == FORWARD_ALL or (kind >= DELETE and option >= 0)))


@compiled
def _find(rows: Ints, at: int, step: int, key: int, kinds: tuple[int, int]) -> int:
    """Return the nearest row before or behind a place that makes or moves a value, of kinds from..to, or -1."""
    at += step
    while 0 <= at < len(rows):
        if kinds[0] <= rows[at, 0] <= kinds[1] and _key(rows, at) == key:
            return at
        at += step
    return -1


@compiled
def _changed(z: Sizes, rows: Ints, count: int, draw: Floats) -> int:
    """Change a list in one way; return how many rows it has then, or -1 if the way leads nowhere."""
    what, where, far, value, more = draw
    at = int(where * count)
    kind, stage, option = rows[at]
    key = _key(rows, at)
    near = int(-2.0 * np.log(1 - far)) if value < 0.7 else int(far * count)
    if what < 0.35:  # move it
        near += 1
        to = at + near if more < 0.5 else at - near
        if not 0 <= to < count:
            return -1
        return _insert(rows, _remove(rows, count, at), to, (kind, stage, option))
    if what < 0.5:  # what it reads, or the saved values, wait on the host before
        own = kind == BACKWARD and more < 0.5
        source = stage if own else stage - 1
        if kind >= DELETE or source < 1:
            return -1
        made = -1
        for each in range(at - 1, -1, -1):
            if rows[each, 0] < BACKWARD and rows[each, 1] == source and (not own or rows[each, 0] == FORWARD_ALL):
                made = each
                break
        if made < 0:
            return -1
        saved = 0 if rows[made, 0] == FORWARD_ALL else -1
        count = _insert(rows, count, max(made + 1, at - near), (PREFETCH, source, saved))
        return _insert(rows, count, made + 1, (OFFLOAD, source, saved))
    if what < 0.6:  # it does not leave, or is not made, at all
        if kind == BACKWARD:
            return -1
        if kind < BACKWARD:
            other = _find(rows[:count], at, 1, key, (DELETE, DELETE))
        elif kind == OFFLOAD:
            other = _find(rows[:count], at, 1, key, (PREFETCH, PREFETCH))
        else:
            other = _find(rows[:count], at, -1, key, (OFFLOAD, OFFLOAD)) if kind == PREFETCH else at
        if other > at:
            count = _remove(rows, count, other)
        count = _remove(rows, count, at)
        return _remove(rows, count, other) if 0 <= other < at else count
    if what < 0.75:  # what it reads is made once more before
        if kind >= DELETE or stage < 2:
            return -1
        made = max(0, at - near)
        if more < 0.6:
            count = _insert(rows, count, at + 1, (DELETE, stage - 1, -1))
            return _insert(rows, count, made, (FORWARD_KEEP, stage - 1, 0))
        options = z.first[stage - 1] - z.first[stage - 2]
        return _insert(rows, count, made, (FORWARD_ALL, stage - 1, int((more - 0.6) / 0.4 * options)))
    if what < 0.85:  # it is made in another way
        if kind >= BACKWARD:
            return -1
        gone = _find(rows[:count], at, 1, key, (DELETE, PREFETCH))
        again = _find(rows[:count], at, 1, key, (FORWARD_ALL, FORWARD_DROP))
        options = z.first[stage] - z.first[stage - 1]
        saves = kind == FORWARD_KEEP or (options > 1 and more < 0.7)
        rows[at, 0], rows[at, 2] = (FORWARD_ALL, int(value * options)) if saves else (FORWARD_KEEP, 0)
        while gone >= 0 and (again < 0 or gone < again):
            rows[gone, 2] = 0 if saves else -1
            gone = _find(rows[:count], gone, 1, key, (DELETE, PREFETCH))
        return count
    if kind == PREFETCH:  # it is made again, not fetched
        gone = _find(rows[:count], at, -1, key, (OFFLOAD, OFFLOAD))
        if gone < 0:
            return -1
        rows[at, 0], rows[at, 2] = (FORWARD_ALL if option >= 0 else FORWARD_KEEP), 0
        rows[gone, 0] = DELETE
        return count
    if kind >= BACKWARD:
        return -1
    gone = _find(rows[:count], at, -1, key, (DELETE, DELETE))  # it is fetched, not made again
    made = _find(rows[:count], at, -1, key, (FORWARD_ALL, FORWARD_KEEP))
    if made < 0:
        return -1
    saved = 0 if kind == FORWARD_ALL else -1
    rows[at, 0], rows[at, 2] = PREFETCH, saved
    if gone > made:
        count = _remove(rows, count, gone)
    return _insert(rows, count, made + 1, (OFFLOAD, stage, saved))


@compiled
def polish(z: Sizes, limits: Limits, given: Ints, draws: Floats, heat: float) -> tuple[Ints, float]:
    """Return the fastest list found, and its seconds, by changing rows.

    One try for each row of `draws`, 17 numbers in [0, 1); `heat` falls to zero, as in `_placed.climb`.
    """
    room = 2 * len(given) + 64
    rows, other = np.empty((room, 3), np.int64), np.empty((room, 3), np.int64)
    rows[: len(given)] = given
    count, tries = len(given), len(draws)
    spent = seconds(z, limits, given)
    best, least = given.copy(), spent
    cost = lowest = spent * (1 + _ROW * count)
    for turn in range(tries):
        draw = draws[turn]
        other[:count] = rows[:count]
        many, changes = count, 1 if draw[0] < 0.5 else (2 if draw[0] < 0.85 else 3)
        for each in range(changes):
            if many > room - 4:
                many = -1
            if many > 0:
                many = _changed(z, other, many, draw[2 + 5 * each : 7 + 5 * each])
        if many < 1:
            continue
        time = seconds(z, limits, other[:many])
        price = time * (1 + _ROW * many)
        if time < np.inf and price <= cost * (1 - heat * (1 - turn / tries) * np.log(1 - draw[1])):
            rows, other = other, rows
            count, spent, cost = many, time, price
            if price < lowest:
                best, least, lowest = rows[:count].copy(), spent, cost
    return best, least
