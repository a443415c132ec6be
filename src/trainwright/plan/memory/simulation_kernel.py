"""The kernel that runs a list of operations with its copies in time and memory, by the rules of `simulate`.

Rows and keys are those of `copy_schedule`.
"""

import numpy as np

from trainwright.kernels import Floats, Ints, compiled
from trainwright.plan.memory.operations import (
    BACKWARD,
    DELETE,
    FORWARD_ALL,
    FORWARD_DROP,
    FORWARD_KEEP,
    OFFLOAD,
    PREFETCH,
)
from trainwright.plan.memory.sizes import Sizes

__all__ = ["ALIVE_AT_PEAK", "BEHIND", "DETAIL", "FAILURE", "FAILURES", "GRADIENT", "NOTES", "PEAK", "ROW", "TEMPORARY",
           "USED", "Limits", "run_rows"]  # fmt: skip

Limits = tuple[int, tuple[float, float, float, float]]
"""Bytes of room; rates to the host and to the device, each alone, then each while both are busy."""
_GONE = 1e-12
# Times of the simulated machine: the clock, the bytes that are left of the copy under way in each direction, and, if
# notes are taken, four of each row: when its work or copy began and ended, and of a copy to the host when the device's
# value went, and the last row that was done by then.
_NOW, _OUT_LEFT, _IN_LEFT, NOTES = 0, 1, 2, 3
# Counts: bytes in use, the ends of both queues, whether a copy back is under way, the row that runs, its temporaries,
# the stage whose gradient has arrived, that behind which the parameters' gradients are there, and why the list fails:
# a place in `FAILURES`, and what that tells. Behind them the same at the peak.
USED, _OUT_AT, _OUT_END, _IN_AT, _IN_END, _COPYING, ROW, TEMPORARY, GRADIENT, BEHIND, FAILURE, DETAIL = range(12)
PEAK = 12
# Of each value: bytes on the device, its option, bytes on the host (-1: not there), the last row that reads it before
# it leaves, whether a copy to the host or back is waiting or under way, the bytes that were sent, the rows that began
# either copy, and the bytes on the device at the peak.
_ALIVE, _OPTION, _HOST, _READER, _FLYING, _COMING, _SENT, _OUT_ROW, _IN_ROW, ALIVE_AT_PEAK = range(10)

FAILURES = (
    "",
    "{operation}: it is being copied",
    "{operation}: it is not there",
    "{operation}: it is not on the device",
    "{operation}: it is not on the host",
    "{operation}: what it makes is there already",
    "{operation}: the gradient of stage {detail} is there, not of {operation.stage}",
    "{operation}: {value} is not there",
    "{operation}: it needs {wanted} bytes, the budget is {budget}",
    "the list ends before backward {detail}",
)
_COPIED, _MISSING, _NOT_ON_DEVICE, _NOT_ON_HOST, _MADE_BEFORE, _OTHER_GRADIENT, _NOT_READY, _TOO_LARGE, _UNFINISHED = (
    range(1, len(FAILURES))
)  # fmt: skip

_Noted = tuple[Floats, Ints, Ints]
"""Times, counts, and values by key."""
_Machine = tuple[Floats, Ints, Ints, Ints, Ints]
"""Times, counts, values by key, and the queues to the host and back."""


@compiled
def _note_peak(c: Ints, v: Ints) -> None:
    if c[USED] > c[PEAK + USED]:
        v[:, ALIVE_AT_PEAK] = v[:, _ALIVE]
        c[PEAK:] = c[:PEAK]


@compiled
def _note_time(f: Floats, row: int, column: int) -> None:
    if len(f) > NOTES:
        f[NOTES + 4 * row + column] = f[_NOW]


@compiled
def _free_value(machine: _Machine, key: int) -> None:
    c, v = machine[1], machine[2]
    v[key, _READER] = -1
    c[USED] -= v[key, _ALIVE]
    v[key, _ALIVE] = -1


@compiled
def _release_value(machine: _Machine, key: int, done: int) -> None:
    """Free a value whose copy to the host is over, and that nobody reads on the device any more."""
    f, v = machine[0], machine[2]
    _note_time(f, v[key, _OUT_ROW], 2)
    if len(f) > NOTES:
        f[NOTES + 4 * v[key, _OUT_ROW] + 3] = done
    _free_value(machine, key)


@compiled
def _start_fetch(room: int, machine: _Machine) -> None:
    """Start the next copy back if its value has left, and fits."""
    f, c, v, _, incoming = machine
    if c[_COPYING] or c[_IN_AT] == c[_IN_END]:
        return
    key = incoming[c[_IN_AT]]
    if not v[key, _FLYING] and v[key, _READER] < 0 and c[USED] + v[key, _HOST] <= room:
        c[_COPYING], f[_IN_LEFT] = 1, v[key, _HOST]
        v[key, _ALIVE] = v[key, _HOST]
        c[USED] += v[key, _HOST]
        _note_time(f, v[key, _IN_ROW], 0)
        if len(f) > NOTES:
            _note_peak(c, v)


@compiled
def _advance_copies(limits: Limits, machine: _Machine, until: float, done: int) -> None:
    """Let copies go on until a time, or, for ever given, until the next one ends."""
    room, rates = limits
    f, c, v, outgoing, incoming = machine
    while c[_OUT_AT] < c[_OUT_END] or c[_COPYING]:
        # Rates change with every copy that begins or ends, so time advances to the next end.
        out, into = c[_OUT_AT] < c[_OUT_END], c[_COPYING] == 1
        rate_out, rate_in = (rates[2], rates[3]) if out and into else (rates[0], rates[1])
        end_out = f[_NOW] + f[_OUT_LEFT] / rate_out if out else np.inf
        end_in = f[_NOW] + f[_IN_LEFT] / rate_in if into else np.inf
        end = min(end_out, end_in)
        step = min(end, until) - f[_NOW]
        if out:
            f[_OUT_LEFT] -= step * rate_out
        if into:
            f[_IN_LEFT] -= step * rate_in
        if end > until:
            break
        f[_NOW] = end
        # Both copies may end at once, within rounding.
        if out and end_out <= end + _GONE * end:
            key = outgoing[c[_OUT_AT]]
            c[_OUT_AT] += 1
            v[key, _FLYING] = 0
            _note_time(f, v[key, _OUT_ROW], 1)
            if c[_OUT_AT] < c[_OUT_END]:
                f[_OUT_LEFT] = v[outgoing[c[_OUT_AT]], _SENT]
                _note_time(f, v[outgoing[c[_OUT_AT]], _OUT_ROW], 0)
            if 0 <= v[key, _READER] <= done:
                _release_value(machine, key, done)
        if into and end_in <= end + _GONE * end:
            key = incoming[c[_IN_AT]]
            c[_IN_AT] += 1
            c[_COPYING], v[key, _COMING], v[key, _HOST] = 0, 0, -1
            _note_time(f, v[key, _IN_ROW], 1)
        _start_fetch(room, machine)
        if until == np.inf:
            return
    if until < np.inf:
        f[_NOW] = until


@compiled
def _last_reader(rows: Ints, at: int, key: int, bare: bool) -> int:
    """Return the place of the last row that may read a leaving value before it comes back, as `simulate` has it."""
    last, stage, saved = at, key // 2, key % 2 == 1
    # `bare`: the stage's bare output is on the device, so that the next stage reads that instead of the saved value.
    for later in range(at + 1, len(rows)):
        kind, other, o = rows[later]
        moves = kind >= DELETE
        if kind == PREFETCH and other == stage and (o >= 0) == saved:
            break
        if saved and moves and other == stage and o < 0:
            bare = kind == PREFETCH
        own = kind == BACKWARD and other == stage and saved
        if not moves and ((other == stage + 1 and not bare) or own):
            last = later
        elif saved and (kind in (FORWARD_KEEP, FORWARD_DROP)) and other == stage:
            bare = True
        if kind == FORWARD_DROP and other == stage + 1:
            bare = False
    return last


@compiled
def _queue_copy(room: int, machine: _Machine, rows: Ints) -> int:
    """Let a copy join its queue; return why it cannot."""
    f, c, v, outgoing, incoming = machine
    at = c[ROW]
    kind, stage, o = rows[at]
    key = 2 * stage + (o >= 0)
    leaving, coming = v[key, _READER] >= 0, v[key, _COMING] == 1
    if kind == OFFLOAD:
        if v[key, _ALIVE] < 0 or leaving or coming:
            return _NOT_ON_DEVICE
        v[key, _HOST] = v[key, _SENT] = v[key, _ALIVE]
        bare = key % 2 == 1 and v[key - 1, _ALIVE] >= 0 and v[key - 1, _READER] < 0
        v[key, _READER], v[key, _FLYING], v[key, _OUT_ROW] = _last_reader(rows, at, key, bare), 1, at
        if c[_OUT_AT] == c[_OUT_END]:
            f[_OUT_LEFT] = v[key, _SENT]
            _note_time(f, at, 0)
        outgoing[c[_OUT_END]] = key
        c[_OUT_END] += 1
    else:
        if v[key, _HOST] < 0 or coming:
            return _NOT_ON_HOST
        v[key, _COMING], v[key, _IN_ROW] = 1, at
        incoming[c[_IN_END]] = key
        c[_IN_END] += 1
    _start_fetch(room, machine)
    return 0


@compiled
def _start_machine(sizes: Sizes, total: int, notes: bool) -> _Machine:
    n = sizes.no_grad_forward.size
    f, c, v = (
        np.full(NOTES + 4 * total * notes, np.nan),
        np.zeros(2 * PEAK, np.int64),
        np.zeros((2 * n + 2, 10), np.int64),
    )
    f[:NOTES] = 0.0
    v[:, _ALIVE] = v[:, _HOST] = v[:, _READER] = v[:, ALIVE_AT_PEAK] = -1
    c[GRADIENT] = c[BEHIND] = n
    c[USED] = sizes.output_gradient[n] + sizes.later_gradients[n]
    c[PEAK:] = c[:PEAK]
    return f, c, v, np.empty(total + 1, np.int64), np.empty(total + 1, np.int64)


@compiled
def _fail(noted: _Noted, failure: int, detail: int) -> tuple[float, _Noted]:
    noted[1][FAILURE], noted[1][DETAIL] = failure, detail
    return np.inf, noted


@compiled
def run_rows(sizes: Sizes, limits: Limits, rows: Ints, total: int, notes: bool) -> tuple[float, _Noted]:
    """Run the first `total` rows of a list; return its seconds, infinite where it fails, and what was noted at the end.

    That is times, counts, and values by key.
    """
    machine = _start_machine(sizes, total, notes)
    f, c, v, _, _ = machine
    room, noted = limits[0], (f, c, v)
    for at in range(total):
        c[ROW] = at
        kind, stage, o = rows[at]
        # Rows that take no time; here and not in a function are those of every list.
        if kind == DELETE:
            key = 2 * stage + (o >= 0)
            if v[key, _READER] >= 0 or v[key, _COMING]:
                return _fail(noted, _COPIED, 0)
            if v[key, _ALIVE] < 0 and v[key, _HOST] < 0:
                return _fail(noted, _MISSING, 0)
            v[key, _HOST] = -1
            if v[key, _ALIVE] >= 0:
                _free_value(machine, key)
            continue
        if kind > DELETE:
            c[FAILURE] = _queue_copy(room, machine, rows)
            if c[FAILURE]:
                return np.inf, noted
            continue
        # A computation: `own` is the value that it makes, or, of a backward, reads and frees.
        bare_key, saved_key = 2 * stage - 2, 2 * stage - 1
        own = 2 * stage + (kind in (FORWARD_ALL, BACKWARD))
        if kind == BACKWARD and c[GRADIENT] != stage:
            return _fail(noted, _OTHER_GRADIENT, c[GRADIENT])
        if kind != BACKWARD and v[own, _ALIVE] >= 0:
            return _fail(noted, _MADE_BEFORE, 0)
        made, temporary, spent = 0, 0, 0.0
        while True:  # until it can start
            key, there, coming = own, True, True
            if stage > 1:
                # It reads the bare output of the stage before it where that is there, else what that has saved.
                bare_ready = v[bare_key, _ALIVE] >= 0 and not v[bare_key, _COMING]
                saved_ready = v[saved_key, _ALIVE] >= 0 and not v[saved_key, _COMING]
                key = bare_key if bare_ready or (not saved_ready and v[bare_key, _COMING]) else saved_key
                there, coming = bare_ready or saved_ready, v[key, _COMING] == 1
            if there and kind == BACKWARD:
                key = own
                there, coming = v[own, _ALIVE] >= 0 and not v[own, _COMING], v[own, _COMING] == 1
            if there:
                # What it makes, what it needs beside that, and its seconds; it starts where both fit.
                if kind == BACKWARD:
                    each = sizes.first[stage - 1] + v[own, _OPTION]
                    made = (
                        sizes.output_gradient[stage - 1]
                        + sizes.later_gradients[stage - 1]
                        - sizes.later_gradients[stage]
                    )
                    temporary, spent = sizes.backward_temporary[each], sizes.backward[each]
                elif kind == FORWARD_ALL:
                    each = sizes.first[stage - 1] + o
                    made, temporary, spent = sizes.saved[each], sizes.temporary[each], sizes.forward[each]
                else:
                    made, temporary = sizes.output[stage], sizes.no_grad_temporary[stage - 1]
                    spent = sizes.no_grad_forward[stage - 1]
                if c[USED] + made + temporary <= room:
                    break
            # A copy under way may end, and free bytes or bring what it reads.
            idle = c[_OUT_AT] == c[_OUT_END] and not c[_COPYING]
            if not there and (idle or not coming):
                return _fail(noted, _NOT_READY, key)
            if idle:
                return _fail(noted, _TOO_LARGE, c[USED] + made + temporary)
            _advance_copies(limits, machine, np.inf, at - 1)
        if kind == BACKWARD:
            c[BEHIND] = stage - 1
        else:
            v[own, _ALIVE], v[own, _OPTION] = made, o if kind == FORWARD_ALL else 0
        c[TEMPORARY] = temporary
        c[USED] += made + temporary
        if notes:
            _note_peak(c, v)
            _note_time(f, at, 0)
        _advance_copies(limits, machine, f[_NOW] + spent, at - 1)
        if notes:
            _note_time(f, at, 1)
        c[TEMPORARY] = 0
        c[USED] -= temporary
        if kind == BACKWARD:
            c[USED] -= sizes.output_gradient[stage]
            _free_value(machine, own)
            c[GRADIENT] -= 1
        elif kind == FORWARD_DROP and v[bare_key, _ALIVE] >= 0 and v[bare_key, _READER] < 0:
            _free_value(machine, bare_key)
        # Values whose copy to the host is over, and which this row was the last to read.
        for key in range(max(2, bare_key), 2 * stage + 2):
            if 0 <= v[key, _READER] <= at and not v[key, _FLYING]:
                _release_value(machine, key, at)
        _start_fetch(room, machine)
    c[ROW] = total
    if c[GRADIENT]:
        return _fail(noted, _UNFINISHED, c[GRADIENT])
    return f[_NOW], noted
