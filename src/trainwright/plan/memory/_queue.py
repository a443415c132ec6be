"""Kernels of exact searches: an open hash table of states, a heap of what is to be looked at, the way to a state."""

import numpy as np

from trainwright.kernels import Floats, Ints, compiled

__all__ = ["EMPTY", "build_table", "find_slot", "path_to", "pop_heap", "push_heap"]

EMPTY = np.int64(-1)


@compiled
def find_slot(keys: Ints, key: int) -> np.int64:
    """Return where a key stands, or would stand, in an open table whose size is a power of two."""
    mask = keys.size - 1
    # Fibonacci hashing: the golden ratio spreads neighbouring keys over the table.
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    place = np.int64(mixed >> np.uint64(20)) & mask
    # Linear probing.
    while keys[place] not in (EMPTY, key):
        place = (place + 1) & mask
    return place


@compiled
def push_heap(heap: Floats, nodes: Ints, size: int, value: float, node: int) -> int:
    # Sift up: parents that are larger move down.
    child = size
    while child:
        parent = (child - 1) >> 1
        if heap[parent] <= value:
            break
        heap[child], nodes[child] = heap[parent], nodes[parent]
        child = parent
    heap[child], nodes[child] = value, node
    return size + 1


@compiled
def pop_heap(heap: Floats, nodes: Ints, size: int) -> int:
    """Remove the least entry, which the caller has read."""
    size -= 1
    value, node = heap[size], nodes[size]
    # Sift the last entry down from the root: the smaller child moves up.
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[parent], nodes[parent] = heap[child], nodes[child]
        parent = child
    heap[parent], nodes[parent] = value, node
    return size


@compiled
def build_table(states: Ints, count: int, size: int) -> tuple[Ints, Ints]:
    """Return a table of so many places with the first states in it: keys, and the number of each."""
    table, holder = np.full(size, EMPTY), np.zeros(size, np.int64)
    for each in range(count):
        place = find_slot(table, states[each])
        table[place], holder[place] = states[each], each
    return table, holder


@compiled
def path_to(came: Ints, node: int) -> Ints:
    """Return the steps [length, 3] from the first state to a node; a row of `came` is the parent and the step."""
    length, at = 0, node
    while at:
        length, at = length + 1, came[at, 0]
    steps, at = np.empty((length, 3), np.int64), node
    while at:
        length -= 1
        steps[length] = came[at, 1:]
        at = came[at, 0]
    return steps
