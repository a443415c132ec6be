"""Finds free slots (devices): blocks inside a node by a buddy allocator, beyond it whole nodes."""

import heapq
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol

from trainwright.schedule.policies.allocation_policy import Block

__all__ = ["BuddyAllocator", "FixedBlocks", "FreeSlots"]


class FreeSlots(Protocol):
    """The free slots of an engine. Blocks that it gives are disjoint until they are given back."""

    @property
    def free(self) -> int:
        """How many slots are free."""

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of blocks, ascending; beyond a node every multiple of it will do, doublings are listed."""

    def take(self, size: int) -> Block | None:
        """Return the lowest of the smallest blocks that hold `size` slots, None if there is none."""

    def grow(self, block: Block, size: int) -> Block | None:
        """Return a block of `size` slots for the holder of `block`, around it if that can be; None if there is none.

        What is new in it is taken; `block` itself stays taken until it is given back.
        """

    def give(self, slots: Iterable[int]) -> None:
        """Take slots back."""

    def withdraw(self, node: range) -> None:
        """Leave out a node's slots, all of which are free, until they are given back."""


class FixedBlocks:
    """Blocks of one size, side by side inside each node, or of so many whole nodes. O(log n) each step."""

    def __init__(self, slots: int, slots_per_node: int, size: int) -> None:
        stride = slots_per_node if size <= slots_per_node else -(-size // slots_per_node) * slots_per_node
        # Tiles lie side by side inside a node, and begin at a node where one needs several of them.
        starts = (
            node + tile
            for node in range(0, slots, stride)
            for tile in range(0, stride - size + 1, size)
            if node + tile + size <= slots
        )
        self._size = size
        self._stride = stride
        self._tiles = list(starts)
        self._starts = frozenset(self._tiles)
        self._out: set[int] = set()  # slots that are left out

    @property
    def free(self) -> int:
        """How many slots are free in whole tiles."""
        return len(self._tiles) * self._size

    def sizes(self) -> tuple[int, ...]:
        """There is one."""
        return (self._size,)

    def take(self, size: int) -> Block | None:
        """Return the lowest tile."""
        if size > self._size or not self._tiles:
            return None
        start = heapq.heappop(self._tiles)
        return tuple(range(start, start + self._size))

    def grow(self, block: Block, size: int) -> Block | None:  # noqa: ARG002 -- the protocol's arguments
        """Nothing grows."""
        return None

    def give(self, slots: Iterable[int]) -> None:
        """Take back whole tiles; a node that was left out brings back those that have no slots of another such."""
        returned = set(slots)
        self._out -= returned
        # A tile is free again as a whole: its first slot stands for it.
        for start in self._starts & {slot - slot % self._stride % self._size for slot in returned}:
            if self._out.isdisjoint(range(start, start + self._size)):
                heapq.heappush(self._tiles, start)

    def withdraw(self, node: range) -> None:
        """Leave out the tiles that have slots of a node."""
        self._out.update(node)
        self._tiles = [at for at in self._tiles if at + self._size <= node.start or node.stop <= at]
        heapq.heapify(self._tiles)


class BuddyAllocator:
    """Powers of two inside a node (buddies, Knowlton 1965), the whole node, and any number of whole nodes.

    A step costs O(log n + slots of a node) for a block inside a node, O(size) beyond. Nodes need not be neighbours:
    what runs on several talks over the network anyway, and a free node is never lost to fragmentation.
    """

    def __init__(self, slots: int, slots_per_node: int) -> None:
        self.slots_per_node = slots_per_node
        self._nodes = slots // slots_per_node
        self._full = (1 << slots_per_node) - 1
        self._free_bits = dict.fromkeys(range(self._nodes), self._full)  # of each node, one bit a slot
        self._whole = list(range(self._nodes))  # a heap of free nodes
        self._part: dict[int, int] = {}  # start of each free part of a node -> its size
        self._starts: dict[int, list[int]] = {}  # heaps of these starts by size, with some that are no longer free
        self.free = self._nodes * slots_per_node
        # A last, smaller node is never whole.
        self.give(range(self.free, slots))

    def sizes(self) -> tuple[int, ...]:
        """Return powers of two up to the node, and its doublings."""
        node, found = self.slots_per_node, [1]
        while found[-1] * 2 < node:
            found.append(found[-1] * 2)
        size = node
        while size <= max(1, self._nodes) * node and self._nodes:
            found.append(size)
            size *= 2
        return tuple(sorted(set(found)))

    def take(self, size: int) -> Block | None:
        """Return the lowest of the smallest sufficient blocks; it may be larger than `size` inside a node."""
        node = self.slots_per_node
        # Blocks inside a node are powers of two; larger ones are whole nodes.
        wanted = 1 << (size - 1).bit_length()
        # Of a node of 6, 5 slots are the whole.
        if wanted > node or size == node:
            count = -(-size // node)
            if count > len(self._whole):
                return None
            numbers = [heapq.heappop(self._whole) for _ in range(count)]
            return self._take_slots(slot for number in numbers for slot in range(number * node, (number + 1) * node))
        start = self._find_part(wanted)
        return None if start is None else self._take_slots(range(start, start + wanted))

    def grow(self, block: Block, size: int) -> Block | None:
        """Whole nodes are added to whole nodes; inside a node the buddies are, or the trial changes its place."""
        node = self.slots_per_node
        if len(block) % node == 0:
            # Whole nodes need not be neighbours, so nothing has to move.
            more = self.take(-(-(size - len(block)) // node) * node) if size > len(block) else ()
            return None if more is None else tuple(sorted((*block, *more)))
        number, offset = divmod(block[0], node)
        length = len(block)
        while length < size:
            length *= 2
        home = range(number * node, (number + 1) * node)
        # The aligned block around this one, if all its buddies are free.
        start = offset - offset % length
        around = home[start : start + length]
        if length.bit_count() == 1 and length < node and len(around) == length and self._is_free(around, block):
            self._take_slots(set(around).difference(block))
            return tuple(around)
        if size < node or block[-1] not in home or not self._is_free(home, block):
            return self.take(size)
        # The rest of its own node is free: the trial keeps its place and takes the whole of it.
        nodes = self.take(-(-(size - node) // node) * node) if size > node else ()
        if nodes is None:
            return None
        self._take_slots(set(home).difference(block))
        return tuple(sorted((*home, *nodes)))

    def give(self, slots: Iterable[int]) -> None:
        """Take slots back, whole nodes and parts."""
        for number, bits in self._bits_by_node(slots).items():
            self._set_free_bits(number, self._free_bits.get(number, 0) | bits)

    def withdraw(self, node: range) -> None:
        """Leave out a whole node."""
        self._whole.remove(node[0] // self.slots_per_node)
        heapq.heapify(self._whole)
        self._take_slots(node)

    def _take_slots(self, slots: Iterable[int]) -> Block:
        """Take free slots and return them."""
        taken = tuple(slots)
        for number, bits in self._bits_by_node(taken).items():
            self._set_free_bits(number, self._free_bits[number] & ~bits)
        return taken

    def _is_free(self, slots: range, but: Block) -> bool:
        """Whether all of some slots in one node are free, apart from those of a block."""
        wanted = self._bits_by_node(set(slots).difference(but))
        return all(self._free_bits.get(number, 0) & bits == bits for number, bits in wanted.items())

    def _bits_by_node(self, slots: Iterable[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for slot in slots:
            number, place = divmod(slot, self.slots_per_node)
            found[number] = found.get(number, 0) | 1 << place
        return found

    def _set_free_bits(self, number: int, bits: int) -> None:
        """Set which slots of a node are free, and with them its free parts."""
        first, before, old = number * self.slots_per_node, self._free_bits.get(number, 0), self._parts_of(number)
        self._free_bits[number] = bits
        self.free += bits.bit_count() - before.bit_count()
        new = self._parts_of(number)
        for start, _ in old - new:
            del self._part[first + start]
        for start, size in new - old:
            self._part[first + start] = size
            heapq.heappush(self._starts.setdefault(size, []), first + start)
        if bits == self._full and number < self._nodes:
            heapq.heappush(self._whole, number)

    def _parts_of(self, number: int) -> frozenset[tuple[int, int]]:
        """Return start and size of the free parts of a node, none if all of it is free."""
        bits = self._free_bits.get(number, 0)
        return frozenset() if bits == self._full and number < self._nodes else _aligned_parts(bits)

    def _find_part(self, size: int) -> int | None:
        """Return the lowest start of the smallest free parts that hold `size` slots, else in the lowest free node."""
        for found in sorted(found for found in self._starts if found >= size):
            heap = self._starts[found]
            # Parts that were joined or taken are still in the heap; they are dropped here.
            while heap and self._part.get(heap[0]) != found:
                heapq.heappop(heap)
            if heap:
                return heap[0]
        if not self._whole:
            return None
        _, start = min((part, start) for start, part in _aligned_parts(self._full) if part >= size)
        return heapq.heappop(self._whole) * self.slots_per_node + start


@lru_cache(4096)
def _aligned_parts(bits: int) -> frozenset[tuple[int, int]]:
    """Return start and size of the largest powers of two that set bits make up, each aligned to its size."""
    found, start = set(), 0
    while bits >> start:
        size = 1
        if bits >> start & 1:
            # Buddies join as far up as they are free, which keeps large blocks available.
            while start % (2 * size) == 0 and ~(bits >> start) & ((1 << 2 * size) - 1) == 0:
                size *= 2
            found.add((start, size))
        start += size
    return frozenset(found)
