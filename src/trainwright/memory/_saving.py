# ruff: noqa: PLR0917 -- compiled code takes positional arguments only
"""Array kernel of `saving`: seconds run again and bytes over time, for one choice of what forward saves."""

import numpy as np

from trainwright.kernels import Flags, Floats, Ints, compiled

__all__ = ["flips", "sweep"]


@compiled
def sweep(
    saved: Flags, again: Flags, limit: int, forward: int, first: Ints, inputs: Ints, storage: Ints, kept: Ints,
    passing: Ints, scratch: Ints, seconds: Floats, fixed: Flags, pinned: Flags, trunk: Flags, handed: Flags,
) -> tuple[float, int, float]:  # fmt: skip
    """Return seconds run again, peak bytes, and bytes above `limit` summed over operations.

    `saved` gains the pinned nodes that turn out to be needed and loses what is not needed; `again` is written.
    """
    count = len(storage)
    there = fixed.copy()
    for node in range(forward):
        there[node] |= saved[node]
    needed = np.zeros(count, np.bool_)
    again[:] = False
    order = np.empty(count, np.int64)
    length = 0
    stack = np.empty(len(inputs) + 1, np.int64)
    found = np.empty(count, np.int64)
    for end in range(forward, count):
        if there[end] or not trunk[end]:
            continue
        stack[0], high, many = end, 1, 0
        while high:
            high -= 1
            node = stack[high]
            if there[node]:
                if node < forward:
                    needed[node] = True
                continue
            there[node] = True
            if node < forward and pinned[node]:
                saved[node] = needed[node] = True
                continue
            found[many] = node
            many += 1
            for place in range(first[node], first[node + 1]):
                stack[high] = inputs[place]
                high += 1
        added = np.sort(found[:many])
        for node in added:
            order[length] = node
            length += 1
            if node < forward:
                again[node] = True
    spent = 0.0
    for node in range(forward):
        saved[node] &= needed[node] and not fixed[node]
        if again[node]:
            spent += seconds[node]

    stays = np.zeros(len(kept), np.bool_)  # from the forward on
    ends = np.zeros(len(kept), np.bool_)  # never freed
    last = np.full(len(kept), -1, np.int64)
    for node in range(count):
        own = storage[node]
        if own < 0:
            continue
        if handed[node]:
            ends[own] = True
        if node < forward:
            stays[own] |= handed[node] or saved[node]
            last[own] = node
            for place in range(first[node], first[node + 1]):
                if storage[inputs[place]] >= 0:
                    last[storage[inputs[place]]] = node
    sizes = np.zeros(len(kept), np.int64)  # of what is alive
    live, peak, excess = 0, 0, 0.0
    for node in range(forward):
        live = _born(storage[node], stays[storage[node]], kept, passing, sizes, live)
        most = live + scratch[node]
        peak, excess = max(peak, most), excess + max(0, most - limit)
        for place in range(first[node], first[node + 1]):
            live = _dies(storage[inputs[place]], node, last, stays, sizes, live)
        live = _dies(storage[node], node, last, stays, sizes, live)

    last[:] = -1
    for place in range(length):
        node = order[place]
        if storage[node] >= 0:
            last[storage[node]] = place
        for at in range(first[node], first[node + 1]):
            if storage[inputs[at]] >= 0:
                last[storage[inputs[at]]] = place
    for node in range(forward, count):
        if fixed[node] and storage[node] >= 0:  # gradients that arrive
            live = _born(storage[node], True, kept, passing, sizes, live)
    for place in range(length):
        node = order[place]
        own = storage[node]
        live = _born(own, own >= 0 and ends[own], kept, passing, sizes, live)
        most = live + scratch[node]
        peak, excess = max(peak, most), excess + max(0, most - limit)
        for at in range(first[node], first[node + 1]):
            live = _dies(storage[inputs[at]], place, last, ends, sizes, live)
        live = _dies(own, place, last, ends, sizes, live)
    return spent, peak, excess


@compiled
def _born(own: int, whole: bool, kept: Ints, passing: Ints, sizes: Ints, live: int) -> int:
    if own < 0 or sizes[own] > 0:
        return live
    sizes[own] = kept[own] if whole else passing[own]
    return live + int(sizes[own])


@compiled
def _dies(own: int, place: int, last: Ints, stays: Flags, sizes: Ints, live: int) -> int:
    if own < 0 or last[own] != place or stays[own] or sizes[own] == 0:
        return live
    live -= int(sizes[own])
    sizes[own] = 0
    return live


@compiled
def flips(
    saved: Flags, candidates: Ints, limit: int, forward: int, first: Ints, inputs: Ints, storage: Ints, kept: Ints,
    passing: Ints, scratch: Ints, seconds: Floats, fixed: Flags, pinned: Flags, trunk: Flags, handed: Flags,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return, for each candidate, the seconds and the bytes above `limit` once it is saved if it was not, or not."""
    spent, excess = np.empty(len(candidates)), np.empty(len(candidates))
    again = np.zeros(len(storage), np.bool_)
    for place, node in enumerate(candidates):
        other = saved.copy()
        other[node] = not other[node]
        spent[place], _, excess[place] = sweep(
            other, again, limit, forward, first, inputs, storage, kept, passing, scratch, seconds, fixed, pinned,
            trunk, handed,
        )  # fmt: skip
    return spent, excess
