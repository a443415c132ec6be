"""Kernels that schedule the copies of joint plans, and simulate a list of operations with its copies.

`place_copies` adds the copies to the host and back to a list of operations, `simulate_seconds` runs the list as
`simulate` does, without records. Rows are (kind, stage from 1, option); the option of DELETE, OFFLOAD and PREFETCH is
-1 for a bare output. A key is 2 stage + (1 if saved): a value that may wait on the host.

The kernels of `phases` call these; see `kernels` about what is cached.
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

__all__ = ["Limits", "fastest_schedule", "place_copies", "simulate_seconds"]

Limits = tuple[int, tuple[float, float, float, float]]
"""Bytes of room; rates to the host and to the device, each alone, then each while both are busy."""
_GONE = 1e-12
_KEY, _SIZE, _MADE, _READ, _NEXT, _CHOSEN = 0, 1, 2, 3, 4, 5
"""Columns of a gap, in which nothing reads a value: its key and bytes, the rows in which it was made or came back, last
read and read next, and whether it leaves."""


@compiled
def place_copies(sizes: Sizes, room: int, rows: Ints, to_device: float, hurry: float) -> Ints:
    """Return the rows with the copies that let them run in `room` bytes, or none if none can.

    A row OFFLOAD of `rows` says that a value leaves until its next reader; where that is not enough, values whose next
    reader is farthest leave too. Copies to the host begin when a value is made, those back as early as they fit, but
    not before `hurry` times the seconds of the copy and of those that wait for it are left.
    """
    total = 0
    for row in range(len(rows)):
        total += rows[row, 0] != OFFLOAD
    # The rows OFFLOAD become marks on the row before them, so that the other rows keep one numbering.
    # Row numbers must be those of the operations alone, for gaps are kept by them.
    listed, marked = np.empty((total, 3), np.int64), np.full(total + 1, -1)
    at = 0
    for row in range(len(rows)):
        if rows[row, 0] == OFFLOAD:
            marked[at - 1] = 2 * rows[row, 1] + (rows[row, 2] >= 0)
        else:
            listed[at] = rows[row]
            at += 1
    needs, ends, gaps = _find_gaps(sizes, listed)
    if not _choose_gaps(room, needs, gaps, marked):
        return np.empty((0, 3), np.int64)
    # The time before which a copy back should not begin, from the last gap on: copies that come later wait for it.
    latest, due = np.zeros(len(gaps)), 0.0
    for gap in range(len(gaps) - 1, -1, -1):
        if gaps[gap, _CHOSEN]:
            before = gaps[gap, _NEXT]
            due = max(due, ends[before]) + gaps[gap, _SIZE] / to_device
            latest[gap] = ends[before] + hurry * (due - ends[before]) if hurry < np.inf else np.inf
    begins = _fetch_begins(room, needs, ends, gaps, latest)
    return _merge_copies(listed, gaps, begins)


@compiled
def _find_gaps(sizes: Sizes, listed: Ints) -> tuple[Ints, Floats, Ints]:
    """Return the bytes that each row needs, the seconds from its start to the end of the step, and all gaps."""
    n, total = sizes.no_grad_forward.size, len(listed)
    needs, ends = np.zeros(total, np.int64), np.zeros(total + 1)
    gaps, many = np.empty((2 * total, 6), np.int64), 0
    # By key: bytes on the device (-1: not there), the row that read it last, the row that made it, its option.
    size, read, made = np.full(2 * n + 2, -1), np.zeros(2 * n + 2, np.int64), np.zeros(2 * n + 2, np.int64)
    option = np.zeros(2 * n + 2, np.int64)
    held = sizes.output_gradient[n] + sizes.later_gradients[n]
    for at in range(total):
        # `held` are the bytes that are alive before this row, as if nothing ever left.
        kind, stage, o = listed[at]
        if kind == DELETE:
            key = 2 * stage + (o >= 0)
            held -= size[key]
            size[key] = -1
            continue
        # A forward reads the value before its stage; a backward reads what the stage has saved, too.
        for turn in range(2 if kind == BACKWARD else 1):
            key = 2 * stage + 1 if turn else (2 * stage - 2 if size[2 * stage - 2] >= 0 else 2 * stage - 1)
            if size[key] < 0:
                continue
            if at > read[key] + 1 and size[key]:
                gaps[many] = (key, size[key], made[key], read[key], at, 0)
                many += 1
            # A value that was read before has come back at this row, if it had left: a later gap begins here.
            made[key] = at if read[key] > made[key] else made[key]
            read[key] = at
        if kind == BACKWARD:
            key = 2 * stage + 1
            o = sizes.first[stage - 1] + option[key]
            # It makes the gradient of its input and of its parameters beside the gradient that it reads.
            new = sizes.output_gradient[stage - 1] + sizes.later_gradients[stage - 1] - sizes.later_gradients[stage]
            needs[at] = held + new + sizes.backward_temporary[o]
            held += new - sizes.output_gradient[stage] - size[key]
            size[key] = -1
            ends[at] = sizes.backward[o]
            continue
        key = 2 * stage + (kind == FORWARD_ALL)
        if kind == FORWARD_ALL:
            option[key], o = o, sizes.first[stage - 1] + o
            size[key] = sizes.saved[o]
            needs[at] = held + size[key] + sizes.temporary[o]
            ends[at] = sizes.forward[o]
        else:
            size[key] = sizes.output[stage]
            needs[at] = held + size[key] + sizes.no_grad_temporary[stage - 1]
            ends[at] = sizes.no_grad_forward[stage - 1]
        made[key] = read[key] = at
        held += size[key]
        if kind == FORWARD_DROP and size[key - 2] >= 0:
            held -= size[key - 2]
            size[key - 2] = -1
    for at in range(total - 1, -1, -1):
        ends[at] += ends[at + 1]
    return needs, ends, gaps[:many]


@compiled
def _choose_gaps(room: int, needs: Ints, gaps: Ints, marked: Ints) -> bool:
    """Choose the values that leave, and take their bytes from what rows need; false where the room is too small."""
    for gap in range(len(gaps)):
        if marked[gaps[gap, _READ]] == gaps[gap, _KEY]:
            gaps[gap, _CHOSEN] = 1
            needs[gaps[gap, _READ] + 1 : gaps[gap, _NEXT]] -= gaps[gap, _SIZE]
    for at in range(len(needs)):
        while needs[at] > room:
            # Belady's rule: of the values that nothing reads now, the one that is read last; of two, the larger.
            # Only values whose gap spans this row free bytes for it.
            best = -1
            for gap in range(len(gaps)):
                if gaps[gap, _CHOSEN] == 0 and gaps[gap, _READ] < at < gaps[gap, _NEXT]:
                    further = best < 0 or gaps[gap, _NEXT] > gaps[best, _NEXT]
                    if further or (gaps[gap, _NEXT] == gaps[best, _NEXT] and gaps[gap, _SIZE] > gaps[best, _SIZE]):
                        best = gap
            if best < 0:
                return False
            gaps[best, _CHOSEN] = 1
            needs[gaps[best, _READ] + 1 : gaps[best, _NEXT]] -= gaps[best, _SIZE]
    return True


@compiled
def _fetch_begins(room: int, needs: Ints, ends: Floats, gaps: Ints, latest: Floats) -> Ints:
    """Return the row before which each copy back begins: as early as it fits, but in the order in which it is read."""
    begins, last = np.full(len(gaps), -1), 0
    for gap in range(len(gaps)):
        if not gaps[gap, _CHOSEN]:
            continue
        # Move the begin of the copy back row by row while the rows before have its bytes to spare.
        length, before, begin = gaps[gap, _SIZE], gaps[gap, _NEXT], gaps[gap, _NEXT]
        while begin > gaps[gap, _READ] + 2 and needs[begin - 1] + length <= room and ends[begin] < latest[gap]:
            begin -= 1
        begin = last = max(begin, min(last, before))
        needs[begin:before] += length  # its bytes are taken from the start of the copy on
        begins[gap] = begin
    return begins


@compiled
def _merge_copies(listed: Ints, gaps: Ints, begins: Ints) -> Ints:
    """Return the rows with a copy to the host after the row that makes a value, and its copy back where that begins."""
    total = len(listed)
    chosen = gaps[begins >= 0]
    # Before one row first copies to the host, then copies back, each in the order of the gaps.
    order = np.concatenate((3 * chosen[:, _MADE] + 3, 3 * begins[begins >= 0] + 1, 3 * np.arange(total) + 2))
    rows = np.empty((2 * len(chosen) + total, 3), np.int64)
    for gap in range(len(chosen)):
        stage, saved = chosen[gap, _KEY] // 2, chosen[gap, _KEY] % 2
        rows[gap] = (OFFLOAD, stage, saved - 1)
        rows[len(chosen) + gap] = (PREFETCH, stage, saved - 1)
    rows[2 * len(chosen) :] = listed
    return rows[np.argsort(order, kind="mergesort")]


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


# Times of the simulated machine: the clock, and the bytes that are left of the copy under way in each direction.
_NOW, _OUT_LEFT, _IN_LEFT = 0, 1, 2
# Counts: bytes in use, the ends of both queues, and whether a copy back is under way.
_USED, _OUT_AT, _OUT_END, _IN_AT, _IN_END, _COPYING = 0, 1, 2, 3, 4, 5
# Of each value: bytes on the device, its option, bytes on the host (-1: not there), the last row that reads it before
# it leaves, whether a copy to the host or back is waiting or under way, and the bytes that were sent.
_ALIVE, _OPTION, _HOST, _READER, _FLYING, _COMING, _SENT = 0, 1, 2, 3, 4, 5, 6

_Machine = tuple[Floats, Ints, Ints, Ints, Ints]
"""Times, counts, values by key, and the queues to the host and back."""


@compiled
def _free_value(machine: _Machine, key: int) -> None:
    _, c, v, _, _ = machine
    v[key, _READER] = -1
    c[_USED] -= v[key, _ALIVE]
    v[key, _ALIVE] = -1


@compiled
def _start_fetch(room: int, machine: _Machine) -> None:
    """Start the next copy back if its value has left, and fits."""
    f, c, v, _, incoming = machine
    if c[_COPYING] or c[_IN_AT] == c[_IN_END]:
        return
    key = incoming[c[_IN_AT]]
    if not v[key, _FLYING] and v[key, _READER] < 0 and c[_USED] + v[key, _HOST] <= room:
        c[_COPYING], f[_IN_LEFT] = 1, v[key, _HOST]
        v[key, _ALIVE] = v[key, _HOST]
        c[_USED] += v[key, _HOST]


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
            if c[_OUT_AT] < c[_OUT_END]:
                f[_OUT_LEFT] = v[outgoing[c[_OUT_AT]], _SENT]
            if 0 <= v[key, _READER] <= done:  # nobody reads the device's copy any more
                _free_value(machine, key)
        if into and end_in <= end + _GONE * end:
            key = incoming[c[_IN_AT]]
            c[_IN_AT] += 1
            c[_COPYING], v[key, _COMING], v[key, _HOST] = 0, 0, -1
        _start_fetch(room, machine)
        if until == np.inf:
            return
    if until < np.inf:
        f[_NOW] = until


@compiled
def simulate_seconds(sizes: Sizes, limits: Limits, rows: Ints) -> float:
    """Return the seconds of a list, infinite where it fails: what `simulate` says, without records."""
    n, total = sizes.no_grad_forward.size, len(rows)
    v = np.zeros((2 * n + 2, 7), np.int64)  # by key
    v[:, _ALIVE] = v[:, _HOST] = v[:, _READER] = -1
    outgoing, incoming = np.empty(total + 1, np.int64), np.empty(total + 1, np.int64)
    f, c, gradient = np.zeros(3), np.zeros(6, np.int64), n
    machine = (f, c, v, outgoing, incoming)
    room = limits[0]
    c[_USED] = sizes.output_gradient[n] + sizes.later_gradients[n]
    for at in range(total):
        kind, stage, o = rows[at]
        # Rows that take no time: deletions, and copies that join their queue.
        if kind >= DELETE:
            key = 2 * stage + (o >= 0)
            leaving, coming = v[key, _READER] >= 0, v[key, _COMING] == 1
            if kind == DELETE:
                if leaving or coming or (v[key, _ALIVE] < 0 and v[key, _HOST] < 0):
                    return np.inf
                v[key, _HOST] = -1
                if v[key, _ALIVE] >= 0:
                    _free_value(machine, key)
                continue
            if kind == OFFLOAD:
                if v[key, _ALIVE] < 0 or leaving or coming:
                    return np.inf
                v[key, _HOST] = v[key, _SENT] = v[key, _ALIVE]
                bare = key % 2 == 1 and v[key - 1, _ALIVE] >= 0 and v[key - 1, _READER] < 0
                v[key, _READER], v[key, _FLYING] = _last_reader(rows, at, key, bare), 1
                if c[_OUT_AT] == c[_OUT_END]:
                    f[_OUT_LEFT] = v[key, _SENT]
                outgoing[c[_OUT_END]] = key
                c[_OUT_END] += 1
            else:
                if v[key, _HOST] < 0 or coming:
                    return np.inf
                v[key, _COMING] = 1
                incoming[c[_IN_END]] = key
                c[_IN_END] += 1
            _start_fetch(room, machine)
            continue
        # A computation: `own` is the value that it makes, or, of a backward, reads and frees.
        bare_key, saved_key = 2 * stage - 2, 2 * stage - 1
        own = 2 * stage + (kind in (FORWARD_ALL, BACKWARD))
        if (kind == BACKWARD and gradient != stage) or (kind != BACKWARD and v[own, _ALIVE] >= 0):
            return np.inf
        made, temporary, spent = 0, 0, 0.0
        while True:  # until it can start
            there = coming = True
            if stage > 1:
                # It reads the bare output of the stage before it where that is there, else what that has saved.
                bare_ready = v[bare_key, _ALIVE] >= 0 and not v[bare_key, _COMING]
                saved_ready = v[saved_key, _ALIVE] >= 0 and not v[saved_key, _COMING]
                key = bare_key if bare_ready or (not saved_ready and v[bare_key, _COMING]) else saved_key
                there, coming = bare_ready or saved_ready, v[key, _COMING] == 1
            if there and kind == BACKWARD:
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
                    made, temporary, spent = (
                        sizes.output[stage],
                        sizes.no_grad_temporary[stage - 1],
                        sizes.no_grad_forward[stage - 1],
                    )
                if c[_USED] + made + temporary <= room:
                    break
            elif not coming:
                return np.inf  # what it reads is not there, and not on its way
            if c[_OUT_AT] == c[_OUT_END] and not c[_COPYING]:
                return np.inf  # no copy is under way that could end and free bytes
            _advance_copies(limits, machine, np.inf, at - 1)
        if kind != BACKWARD:
            v[own, _ALIVE], v[own, _OPTION] = made, o if kind == FORWARD_ALL else 0
        c[_USED] += made + temporary
        _advance_copies(limits, machine, f[_NOW] + spent, at - 1)
        c[_USED] -= temporary
        if kind == BACKWARD:
            c[_USED] -= sizes.output_gradient[stage]
            _free_value(machine, own)
            gradient -= 1
        elif kind == FORWARD_DROP and v[bare_key, _ALIVE] >= 0 and v[bare_key, _READER] < 0:
            _free_value(machine, bare_key)
        # Values whose copy to the host is over, and which this row was the last to read.
        for key in range(max(2, bare_key), 2 * stage + 2):
            if 0 <= v[key, _READER] <= at and not v[key, _FLYING]:
                _free_value(machine, key)
        _start_fetch(room, machine)
    return f[_NOW] if gradient == 0 else np.inf


@compiled
def fastest_schedule(sizes: Sizes, limits: Limits, hurries: Floats, rows: Ints) -> tuple[Ints, float]:
    """Return the fastest of the lists that several hurries make of a plan, and its seconds."""
    best, least = rows[:0], np.inf
    for hurry in hurries:
        # An early copy back takes bytes for longer, a late one is waited for: which is faster depends on the plan.
        copied = place_copies(sizes, limits[0], rows, limits[1][1], hurry)
        if not len(copied):
            break
        spent = simulate_seconds(sizes, limits, copied)
        if spent < least:
            best, least = copied, spent
    return best, least
