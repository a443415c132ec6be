"""Kernels that schedule the copies of joint plans: which values leave for the host, and when they come back.

`place_copies` adds the copies to a list of operations. Rows are (kind, stage from 1, option); the option of DELETE,
OFFLOAD and PREFETCH is -1 for a bare output. A key is 2 stage + (1 if saved): a value that may wait on the host.
"""

import numpy as np

from trainwright.kernels import Floats, Ints, compiled
from trainwright.plan.memory.operations import BACKWARD, DELETE, FORWARD_ALL, FORWARD_DROP, OFFLOAD, PREFETCH
from trainwright.plan.memory.simulation_kernel import Limits, run_rows
from trainwright.plan.memory.sizes import Sizes

__all__ = ["fastest_schedule", "place_copies"]

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
def fastest_schedule(sizes: Sizes, limits: Limits, hurries: Floats, rows: Ints) -> tuple[Ints, float]:
    """Return the fastest of the lists that several hurries make of a plan, and its seconds."""
    best, least = rows[:0], np.inf
    for hurry in hurries:
        # An early copy back takes bytes for longer, a late one is waited for: which is faster depends on the plan.
        copied = place_copies(sizes, limits[0], rows, limits[1][1], hurry)
        if not len(copied):
            break
        spent = run_rows(sizes, limits, copied, len(copied), False)[0]
        if spent < least:
            best, least = copied, spent
    return best, least
