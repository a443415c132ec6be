"""Which slots are free: blocks inside a node as a buddy allocator gives them, beyond it whole nodes."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
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

    O(log n) each step for a block inside a node, O(size) beyond. Nodes need not be neighbours: what runs on several
    talks over the network anyway, and a free node is never lost to fragmentation.
    """

    def __init__(self, slots: int, slots_per_node: int) -> None:
        self.slots_per_node = slots_per_node
        self._whole = list(range(slots // slots_per_node))  # a heap of free nodes
        self._rest = slots % slots_per_node  # of a last, smaller node
        self._parts: dict[int, list[int]] = {}  # heaps of starts of free parts of nodes, by size
        self._part: dict[int, int] = {}  # start of each free part -> its size
        self._counts: dict[int, int] = {}  # free slots of nodes in parts
        self._nodes = slots // slots_per_node
        self.free = slots
        if self._rest:
            self._counts[self._nodes] = self._rest
            self._split_part(self._nodes * slots_per_node, self._rest)

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
            nodes = sorted(heapq.heappop(self._whole) for _ in range(count))
            self.free -= count * node
            return tuple(slot for number in nodes for slot in range(number * node, (number + 1) * node))
        start = self._part_of(wanted)
        if start is None:
            if not self._whole:
                return None
            whole = heapq.heappop(self._whole)
            self._counts[whole] = node
            self._split_part(whole * node, node)
            start = self._part_of(wanted)
            assert start is not None  # noqa: S101 -- a power of two below the node is in its largest part
        self.free -= wanted
        self._counts[start // node] -= wanted
        return tuple(range(start, start + wanted))

    def grow(self, block: Block, size: int) -> Block | None:
        """Whole nodes are added to whole nodes; inside a node the buddies are, or the trial changes its place."""
        node = self.slots_per_node
        if len(block) % node == 0:
            # Whole nodes need not be neighbours, so nothing has to move.
            more = self.take(-(-(size - len(block)) // node) * node) if size > len(block) else ()
            return None if more is None else tuple(sorted((*block, *more)))
        start, length = block[0], len(block)
        grown: list[int] = []
        # Merge with free buddies around the block as long as they are free.
        while length < size and length * 2 < node:
            buddy = self._find_buddy(start, length)
            if self._part.get(buddy) != length:
                break
            grown.append(buddy)
            start, length = min(start, buddy), length * 2
        if length >= size:
            at = block[0]
            have = len(block)
            for buddy in grown:
                self._take_part(buddy, have)
                at, have = min(at, buddy), have * 2
            return tuple(range(at, at + have))
        # The rest of its own node is free: the trial keeps its place and takes the whole of it.
        if size >= node and self._counts.get(start // node, 0) == node - len(block):
            return self._take_rest_of_node(block, size)
        return self.take(size)

    def _take_rest_of_node(self, block: Block, size: int) -> Block | None:
        """Take the rest of the block's node, and more nodes."""
        node = self.slots_per_node
        home = block[0] // node
        more = self.take(-(-(size - node) // node) * node) if size > node else ()
        if more is None:
            return None
        for start in [start for start in self._part if start // node == home]:
            self._take_part(start, self._part[start])
        return tuple(sorted((*range(home * node, (home + 1) * node), *more)))

    def give(self, slots: Iterable[int]) -> None:
        """Take slots back, whole nodes and parts."""
        node = self.slots_per_node
        by_node: dict[int, list[int]] = {}
        for slot in sorted(slots):
            by_node.setdefault(slot // node, []).append(slot)
        for number, returned in by_node.items():
            self.free += len(returned)
            if len(returned) == node:
                heapq.heappush(self._whole, number)
                continue
            self._counts[number] = self._counts.get(number, 0) + len(returned)
            for first, length in _neighbour_runs(returned):
                for start, size in _aligned_parts(first - number * node, length):
                    self._add_part(number * node + start, size)
            self._merge_node(number)

    def withdraw(self, node: range) -> None:
        """Leave out a whole node."""
        self._whole.remove(node[0] // self.slots_per_node)
        heapq.heapify(self._whole)
        self.free -= len(node)

    def _merge_node(self, number: int) -> None:
        """Make a node whole again if all of it is free."""
        node = self.slots_per_node
        if number < self._nodes and self._counts.get(number) == node:
            for start in [start for start in self._part if start // node == number]:
                del self._part[start]
            del self._counts[number]
            heapq.heappush(self._whole, number)

    def _split_part(self, start: int, size: int) -> None:
        for offset, part in _aligned_parts(0, size):
            self._put_part(start + offset, part)

    def _put_part(self, start: int, size: int) -> None:
        self._part[start] = size
        heapq.heappush(self._parts.setdefault(size, []), start)

    def _add_part(self, start: int, size: int) -> None:
        """Free a part, joined with its buddy as often as that is free."""
        # Buddies join as far up as they are free, which keeps large blocks available.
        while self._part.get(buddy := self._find_buddy(start, size)) == size:
            del self._part[buddy]
            start, size = min(start, buddy), size * 2
        self._put_part(start, size)

    def _find_buddy(self, start: int, size: int) -> int:
        """Return the start of the part with which this one makes one twice as large; -1 if the node ends before."""
        offset = start % self.slots_per_node
        buddy = offset ^ size
        return start - offset + buddy if buddy + size <= self.slots_per_node else -1

    def _part_of(self, size: int) -> int | None:
        """Return the start of a part of just this size, split off the smallest that holds it."""
        for found in sorted(found for found in self._parts if found >= size):
            heap = self._parts[found]
            # Parts that were joined or taken by name are still in the heap; they are dropped here.
            while heap and self._part.get(heap[0]) != found:
                heapq.heappop(heap)
            if heap:
                start, larger = heapq.heappop(heap), found
                del self._part[start]
                while larger > size:
                    larger //= 2
                    self._put_part(start + larger, larger)
                return start
        return None

    def _take_part(self, start: int, size: int) -> None:
        """Take a free part whose start is known; its place in the heap is dropped when it comes up."""
        del self._part[start]
        self.free -= size
        self._counts[start // self.slots_per_node] -= size


def _aligned_parts(start: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the powers of two that make up so many slots from `start` within a node, each aligned to its size."""
    while size:
        part = 1 << (size.bit_length() - 1)
        if start:
            part = min(part, start & -start)
        yield start, part
        start, size = start + part, size - part


def _neighbour_runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield start and length of each run of neighbours in ascending slots."""
    first = 0
    for place in range(1, len(slots) + 1):
        if place == len(slots) or slots[place] != slots[place - 1] + 1:
            yield slots[first], place - first
            first = place
