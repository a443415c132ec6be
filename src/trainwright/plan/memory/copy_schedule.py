"""Kernels that carry joint plans out: a priced plan with decisions forced, its copies placed in time, and its seconds.

Rows are (kind, stage from 1, option); of DELETE, OFFLOAD and PREFETCH the option is -1 for a bare output. `walk_priced_table` reads
a plan off the table of `_joint`, `place_copies` adds the copies, `simulate_seconds` runs the list as `simulate` does, `anneal_choices` changes
one decision after another and keeps what is faster. A key is 2 stage + (1 if saved): what may wait on the host.

Longer than 450 lines because kernels that call each other stay in one file (see `kernels`).
"""

import numpy as np

from trainwright.kernels import Floats, Ints, Singles, compiled
from trainwright.plan.memory.sizes import Sizes

__all__ = [
    "BACKWARD",
    "DELETE",
    "FORWARD_ALL",
    "FORWARD_DROP",
    "FORWARD_KEEP",
    "OFFLOAD",
    "PREFETCH",
    "Table",
    "anneal_choices",
    "fastest_schedule",
    "no_forced_choices",
    "place_copies",
    "simulate_seconds",
    "walk_priced_table",
]  # fmt: skip

FORWARD_ALL, FORWARD_KEEP, FORWARD_DROP, BACKWARD, DELETE, OFFLOAD, PREFETCH = 0, 1, 2, 3, 4, 5, 6
_EXPAND = -1
_FREE = -1
"""A decision that is not forced."""
_SPLIT = 1000
"""Forced choices: an option of the stage, or this and the split."""
Table = tuple[tuple[Ints, Ints], Singles, tuple[int, int, int], float]
"""Kinds, table, grid and price, as of `_joint.fill`."""
Limits = tuple[int, tuple[float, float, float, float]]
"""Bytes of room; rates to the host and to the device, each alone, then each while both are busy."""
_HEAT = 1e-3
_INF = np.float32(np.inf)
_GONE = 1e-12


@compiled
def _to_slots(count: int, unit: int, up: int) -> int:
    return max(0, count + up) // unit


def no_forced_choices(n: int) -> Ints:
    """Return the decisions of a plan of n stages, none of them forced, as `walk_priced_table` reads them."""
    forced = np.full((n, n, 3), _FREE, np.int64)
    forced[:, :, 2] = 0
    return forced


@compiled
def _grow_rows(rows: Ints, count: int, more: int) -> Ints:
    if count + more <= len(rows):
        return rows
    longer = np.empty((2 * len(rows) + more, rows.shape[1]), np.int64)
    longer[:count] = rows[:count]
    return longer


@compiled
def walk_priced_table(z: Sizes, priced: Table, forced: Ints) -> tuple[Ints, Floats, Ints]:
    """Return the plan in all slots as rows, its seconds and the bytes that leave, and the nodes (s, t) it has.

    A row OFFLOAD says that a value waits on the host from here to its next reader. `forced` [n, n, 3] has of node
    (s, t) its choice, whether what is held leaves (1) or stays (0), each _FREE or forced, and slots given to it.
    """
    (first_kind, weight), table, (unit, up, slots), price = priced
    n = z.plain.size
    arrived = z.delta + z.grown
    done: Ints = np.empty((256, 3), np.int64)
    nodes: Ints = np.empty((4 * n + 4, 2), np.int64)
    count = seen = 0
    sums = np.zeros(2)
    tasks = np.empty((6 * n + 16, 5), np.int64)  # kind, s or stage, t or option, m, x
    tasks[0] = (_EXPAND, 0, n - 1, slots, 0)
    waiting = 1
    while waiting:
        waiting -= 1
        kind, s, t, m, x = tasks[waiting]
        done = _grow_rows(done, count, n + 4)
        if kind != _EXPAND:
            done[count] = (kind, s, t)
            count += 1
            continue
        nodes = _grow_rows(nodes, seen, 1)
        nodes[seen] = (s, t)
        seen += 1
        m = min(max(m + forced[s, t, 2], 0), slots)
        while table[x, t, m] == _INF:  # never without forced decisions but at the root
            m += 1
            if m > slots:
                return done[:0], sums, nodes[:seen]
        w = weight[x]
        wide, fare = _to_slots(w, unit, up), np.float32(price * w)
        best, option, split_at, leaves = _INF, -1, -1, False
        choice, must = forced[s, t, 0], forced[s, t, 1]
        for o in range(z.first[s], z.first[s + 1]):
            if choice != _FREE and choice != o - z.first[s]:
                continue
            need = w + max(
                arrived[t + 1] + z.saved[o] + z.temporary[o],
                z.delta[s + 1] + z.saved[o] + arrived[s] + z.back_temporary[o],
            )
            if m < _to_slots(need, unit, up) and choice == _FREE:
                continue
            value = np.float32(z.forward[o] + z.back[o])
            away = False
            if s < t:
                inner = table[first_kind[s + 1] + 1 + o - z.first[s], t]
                away = m < wide or inner[m] + fare < inner[m - wide]
                value += inner[m] + fare if away else inner[m - wide]
            if value < best or option < 0:
                best, option, leaves = value, o, away
        need, ran, rest = w + arrived[t + 1] + z.out[s + 1] + z.plain_temporary[s], 0.0, np.int64(0)
        for split in range(s + 1, t + 1):
            j = split - 1
            ran += z.plain[j]
            if j > s:
                rest = max(rest, arrived[t + 1] + z.out[j + 1] + z.plain_temporary[j] + z.out[j])
            if choice != _FREE and choice != _SPLIT + split:
                continue
            if m < _to_slots(max(need, rest), unit, up) and choice == _FREE:
                continue
            right = table[first_kind[split], t]
            away = m < wide or m < _to_slots(w + rest, unit, up) or right[m] + fare < right[m - wide]
            value = np.float32(ran) + (right[m] + fare if away else right[m - wide]) + table[x, j, m]
            if value < best or (option < 0 and split_at < 0):
                best, option, split_at, leaves = value, -1, split, away
        if must != _FREE:
            leaves = must == 1
        inner_m = m if leaves else m - wide
        if leaves:
            sums[1] += w
        left_kind = x - first_kind[s] - 1
        if split_at < 0:
            sums[0] += z.forward[option] + z.back[option]
            done[count] = (FORWARD_ALL, s + 1, option - z.first[s])
            count += 1
            if leaves and s and s < t:
                done[count] = (OFFLOAD, s, left_kind)
                count += 1
            tasks[waiting] = (BACKWARD, s + 1, 0, 0, 0)
            waiting += 1
            if s < t:
                tasks[waiting] = (_EXPAND, s + 1, t, inner_m, first_kind[s + 1] + 1 + option - z.first[s])
                waiting += 1
            continue
        for j in range(s, split_at):
            sums[0] += z.plain[j]
            done[count] = (FORWARD_KEEP if j == s else FORWARD_DROP, j + 1, 0)
            count += 1
            if j == s and leaves and s:
                done[count] = (OFFLOAD, s, left_kind)
                count += 1
        tasks[waiting] = (_EXPAND, s, split_at - 1, m, x)
        tasks[waiting + 1] = (DELETE, split_at, -1, 0, 0)
        tasks[waiting + 2] = (_EXPAND, split_at, t, inner_m, first_kind[split_at])
        waiting += 3
    return done[:count], sums, nodes[:seen]


@compiled
def place_copies(z: Sizes, room: int, rows: Ints, to_device: float, hurry: float) -> Ints:
    """Return the rows with the copies that let them run in `room` bytes, or none if none can.

    A row OFFLOAD of `rows` says that a value leaves until its next reader; where that is not enough, values whose next
    reader is farthest leave too. Copies to the host begin when a value is made, those back as early as they fit, but
    not before `hurry` times the seconds of the copy and of those that wait for it are left.
    """
    n = z.plain.size
    total = 0
    for row in range(len(rows)):
        total += rows[row, 0] != OFFLOAD
    listed, marked = np.empty((total, 3), np.int64), np.full(total + 1, -1)
    at = 0
    for row in range(len(rows)):
        if rows[row, 0] == OFFLOAD:
            marked[at - 1] = 2 * rows[row, 1] + (rows[row, 2] >= 0)
        else:
            listed[at] = rows[row]
            at += 1
    needs, ends = np.zeros(total, np.int64), np.zeros(total + 1)
    gaps, many = np.empty((2 * total, 6), np.int64), 0  # key, bytes, made or last read, after, before, chosen
    size, read, made = np.full(2 * n + 2, -1), np.zeros(2 * n + 2, np.int64), np.zeros(2 * n + 2, np.int64)
    option = np.zeros(2 * n + 2, np.int64)
    held = z.delta[n] + z.grown[n]
    for at in range(total):
        kind, stage, o = listed[at]
        if kind == DELETE:
            key = 2 * stage + (o >= 0)
            held -= size[key]
            size[key] = -1
            continue
        for turn in range(2 if kind == BACKWARD else 1):
            key = 2 * stage + 1 if turn else (2 * stage - 2 if size[2 * stage - 2] >= 0 else 2 * stage - 1)
            if size[key] < 0:
                continue
            if at > read[key] + 1 and size[key]:
                gaps[many] = (key, size[key], made[key], read[key], at, 0)
                many += 1
            made[key] = at if read[key] > made[key] else made[key]
            read[key] = at
        if kind == BACKWARD:
            key = 2 * stage + 1
            o = z.first[stage - 1] + option[key]
            new = z.delta[stage - 1] + z.grown[stage - 1] - z.grown[stage]
            needs[at] = held + new + z.back_temporary[o]
            held += new - z.delta[stage] - size[key]
            size[key] = -1
            ends[at] = z.back[o]
            continue
        key = 2 * stage + (kind == FORWARD_ALL)
        if kind == FORWARD_ALL:
            option[key], o = o, z.first[stage - 1] + o
            size[key] = z.saved[o]
            needs[at] = held + size[key] + z.temporary[o]
            ends[at] = z.forward[o]
        else:
            size[key] = z.out[stage]
            needs[at] = held + size[key] + z.plain_temporary[stage - 1]
            ends[at] = z.plain[stage - 1]
        made[key] = read[key] = at
        held += size[key]
        if kind == FORWARD_DROP and size[key - 2] >= 0:
            held -= size[key - 2]
            size[key - 2] = -1
    for at in range(total - 1, -1, -1):
        ends[at] += ends[at + 1]
    for gap in range(many):
        if marked[gaps[gap, 3]] == gaps[gap, 0]:
            gaps[gap, 5] = 1
            needs[gaps[gap, 3] + 1 : gaps[gap, 4]] -= gaps[gap, 1]
    for at in range(total):
        while needs[at] > room:
            best = -1
            for gap in range(many):
                if gaps[gap, 5] == 0 and gaps[gap, 3] < at < gaps[gap, 4]:
                    further = best < 0 or gaps[gap, 4] > gaps[best, 4]
                    if further or (gaps[gap, 4] == gaps[best, 4] and gaps[gap, 1] > gaps[best, 1]):
                        best = gap
            if best < 0:
                return np.empty((0, 3), np.int64)
            gaps[best, 5] = 1
            needs[gaps[best, 3] + 1 : gaps[best, 4]] -= gaps[best, 1]
    latest, due = np.zeros(many), 0.0
    for gap in range(many - 1, -1, -1):
        if gaps[gap, 5]:
            before = gaps[gap, 4]
            due = max(due, ends[before]) + gaps[gap, 1] / to_device
            latest[gap] = ends[before] + hurry * (due - ends[before]) if hurry < np.inf else np.inf
    out_head, out_next = np.full(total + 1, -1), np.full(many, -1)
    in_head, in_tail, in_next = np.full(total + 1, -1), np.full(total + 1, -1), np.full(many, -1)
    last = copies = 0
    for gap in range(many):
        if not gaps[gap, 5]:
            continue
        copies += 2
        length, before, begin = gaps[gap, 1], gaps[gap, 4], gaps[gap, 4]
        while begin > gaps[gap, 3] + 2 and needs[begin - 1] + length <= room and ends[begin] < latest[gap]:
            begin -= 1
        begin = last = max(begin, min(last, before))
        needs[begin:before] += length
        if in_head[begin] < 0:
            in_head[begin] = gap
        else:
            in_next[in_tail[begin]] = gap
        in_tail[begin] = gap
    for gap in range(many - 1, -1, -1):
        if gaps[gap, 5]:
            begin = gaps[gap, 2] + 1
            out_next[gap] = out_head[begin]
            out_head[begin] = gap
    found, at = np.empty((total + copies, 3), np.int64), 0
    for each in range(total):
        gap = out_head[each]
        while gap >= 0:
            found[at] = (OFFLOAD, gaps[gap, 0] // 2, gaps[gap, 0] % 2 - 1)
            gap, at = out_next[gap], at + 1
        gap = in_head[each]
        while gap >= 0:
            found[at] = (PREFETCH, gaps[gap, 0] // 2, gaps[gap, 0] % 2 - 1)
            gap, at = in_next[gap], at + 1
        found[at] = listed[each]
        at += 1
    return found


@compiled
def _last_reader(rows: Ints, at: int, key: int, bare: bool) -> int:
    """Return the place of the last row that may read a leaving value before it comes back, as `simulate` has it."""
    last, stage, saved = at, key // 2, key % 2 == 1
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


_NOW, _OUT_LEFT, _IN_LEFT = 0, 1, 2
_USED, _OUT_AT, _OUT_END, _IN_AT, _IN_END, _COPYING = 0, 1, 2, 3, 4, 5


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
        if out and end_out <= end + _GONE * end:
            key = outgoing[c[_OUT_AT]]
            c[_OUT_AT] += 1
            v[key, _FLYING] = 0
            if c[_OUT_AT] < c[_OUT_END]:
                f[_OUT_LEFT] = v[outgoing[c[_OUT_AT]], _SENT]
            if 0 <= v[key, _READER] <= done:
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


_ALIVE, _OPTION, _HOST, _READER, _FLYING, _COMING, _SENT = 0, 1, 2, 3, 4, 5, 6


@compiled
def simulate_seconds(z: Sizes, limits: Limits, rows: Ints) -> float:
    """Return the seconds of a list, infinite where it fails: what `simulate` says, without records."""
    n, total = z.plain.size, len(rows)
    v = np.zeros((2 * n + 2, 7), np.int64)  # by key
    v[:, _ALIVE] = v[:, _HOST] = v[:, _READER] = -1
    outgoing, incoming = np.empty(total + 1, np.int64), np.empty(total + 1, np.int64)
    f, c, gradient = np.zeros(3), np.zeros(6, np.int64), n
    machine = (f, c, v, outgoing, incoming)
    room = limits[0]
    c[_USED] = z.delta[n] + z.grown[n]
    for at in range(total):
        kind, stage, o = rows[at]
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
        bare_key, saved_key = 2 * stage - 2, 2 * stage - 1
        own = 2 * stage + (kind in (FORWARD_ALL, BACKWARD))
        if (kind == BACKWARD and gradient != stage) or (kind != BACKWARD and v[own, _ALIVE] >= 0):
            return np.inf
        made, temporary, spent = 0, 0, 0.0
        while True:  # until it can start
            there = coming = True
            if stage > 1:
                bare_ready = v[bare_key, _ALIVE] >= 0 and not v[bare_key, _COMING]
                saved_ready = v[saved_key, _ALIVE] >= 0 and not v[saved_key, _COMING]
                key = bare_key if bare_ready or (not saved_ready and v[bare_key, _COMING]) else saved_key
                there, coming = bare_ready or saved_ready, v[key, _COMING] == 1
            if there and kind == BACKWARD:
                there, coming = v[own, _ALIVE] >= 0 and not v[own, _COMING], v[own, _COMING] == 1
            if there:
                if kind == BACKWARD:
                    each = z.first[stage - 1] + v[own, _OPTION]
                    made = z.delta[stage - 1] + z.grown[stage - 1] - z.grown[stage]
                    temporary, spent = z.back_temporary[each], z.back[each]
                elif kind == FORWARD_ALL:
                    each = z.first[stage - 1] + o
                    made, temporary, spent = z.saved[each], z.temporary[each], z.forward[each]
                else:
                    made, temporary, spent = z.out[stage], z.plain_temporary[stage - 1], z.plain[stage - 1]
                if c[_USED] + made + temporary <= room:
                    break
            elif not coming:
                return np.inf
            if c[_OUT_AT] == c[_OUT_END] and not c[_COPYING]:
                return np.inf
            _advance_copies(limits, machine, np.inf, at - 1)
        if kind != BACKWARD:
            v[own, _ALIVE], v[own, _OPTION] = made, o if kind == FORWARD_ALL else 0
        c[_USED] += made + temporary
        _advance_copies(limits, machine, f[_NOW] + spent, at - 1)
        c[_USED] -= temporary
        if kind == BACKWARD:
            c[_USED] -= z.delta[stage]
            _free_value(machine, own)
            gradient -= 1
        elif kind == FORWARD_DROP and v[bare_key, _ALIVE] >= 0 and v[bare_key, _READER] < 0:
            _free_value(machine, bare_key)
        for key in range(max(2, bare_key), 2 * stage + 2):
            if 0 <= v[key, _READER] <= at and not v[key, _FLYING]:
                _free_value(machine, key)
        _start_fetch(room, machine)
    return f[_NOW] if gradient == 0 else np.inf


@compiled
def fastest_schedule(z: Sizes, limits: Limits, hurries: Floats, rows: Ints) -> tuple[Ints, float]:
    """Return the fastest of the lists that several hurries make of a plan, and its seconds."""
    best, least = rows[:0], np.inf
    for hurry in hurries:
        copied = place_copies(z, limits[0], rows, limits[1][1], hurry)
        if not len(copied):
            break
        spent = simulate_seconds(z, limits, copied)
        if spent < least:
            best, least = copied, spent
    return best, least


@compiled
def anneal_choices(
    z: Sizes, priced: Table, within: tuple[Limits, Floats], forced: Ints, draws: Floats
) -> tuple[Ints, float]:
    """Return the fastest list found, and its seconds, by forcing more decisions of the plan that a table means.

    One try for each row of `draws`, 14 numbers in [0, 1). Annealing: a change that loses a share x of the time is kept
    with probability exp(-x / heat), heat falling to zero. In the end `forced` has the decisions of the fastest.
    """
    (limits, hurries), slots, tries = within, priced[2][2], len(draws)
    rows, sums, nodes = walk_priced_table(z, priced, forced)
    best, least = fastest_schedule(z, limits, hurries, rows)
    if not len(rows):
        return best, least
    spent, kept = least, forced.copy()
    undo = np.empty((3, 4), np.int64)
    for turn in range(tries):
        draw = draws[turn]
        changes = 1 if draw[0] < 0.5 else (2 if draw[0] < 0.9 else 3)
        for each in range(changes):
            where, which, value, more = draw[2 + 4 * each : 6 + 4 * each]
            s, t = nodes[int(where * len(nodes))]
            what = 1 if which < 0.4 else (0 if which < 0.8 else 2)
            undo[each] = (s, t, what, forced[s, t, what])
            if what == 1:
                new = int(3 * value) - 1
            elif what == 2:
                new = 0 if value < 0.2 else int((2 * more - 1) * slots / 6)
            elif value < 0.2:
                new = _FREE
            elif t == s or value < 0.6:
                new = int(more * (z.first[s + 1] - z.first[s]))
            else:
                new = _SPLIT + s + 1 + int(more * (t - s))
            forced[s, t, what] = new
        rows, sums, other = walk_priced_table(z, priced, forced)
        limit = spent * (1 - _HEAT * (1 - turn / tries) * np.log(1 - draw[1])) if spent < np.inf else np.inf
        found, time = rows[:0], np.inf
        if len(rows) and sums[0] <= limit:
            found, time = fastest_schedule(z, limits, hurries, rows)
        if len(found) and time <= limit:
            spent, nodes = time, other
            if time < least:
                best, least = found, time
                kept[:] = forced
        else:
            for each in range(changes - 1, -1, -1):
                s, t, what, old = undo[each]
                forced[s, t, what] = old
    forced[:] = kept
    return best, least
