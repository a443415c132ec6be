"""Finds free slots on heterogeneous nodes, of several speeds or sizes: each kind apart, so that a gang has one speed.

A synchronous gang goes at its slowest member. Blocks come from the fastest nodes that have one free, and nodes of
several kinds are joined only where no kind has so many slots in all.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate

from trainwright.cluster.device import NodeShape
from trainwright.schedule.allocator.free_slots import FreeSlots
from trainwright.schedule.policies.allocation_policy import AllocationPolicy, Block

__all__ = ["MixedNodes", "arrange_slots", "node_slots", "slot_speeds"]

MakeFreeSlots = Callable[[int, int], FreeSlots]
"""Makes the free slots of so many slots, so many a node, as a policy does."""


@lru_cache(16)
def node_slots(nodes: tuple[NodeShape, ...]) -> tuple[range, ...]:
    """Return the slots of each node; they are numbered node by node."""
    ends = accumulate(node.devices for node in nodes)
    return tuple(range(end - node.devices, end) for node, end in zip(nodes, ends, strict=True))


def slot_speeds(nodes: Sequence[NodeShape]) -> tuple[float, ...]:
    """Return the speed of each slot; () where all are 1."""
    speeds = tuple(node.speed for node in nodes for _ in range(node.devices))
    return speeds if set(speeds) != {1.0} else ()


def arrange_slots(nodes: tuple[NodeShape, ...], policy: AllocationPolicy) -> FreeSlots:
    """Return the free slots of these nodes in the blocks that a policy grants."""
    # A last, smaller node is what policies themselves see to.
    if (
        len({node.speed for node in nodes}) == 1
        and len({node.devices for node in nodes[:-1]} | {nodes[0].devices}) == 1
    ):
        return policy.free_slots(sum(node.devices for node in nodes), nodes[0].devices)
    return MixedNodes(nodes, policy.start, policy.free_slots)


class _Kind:
    """The nodes of one speed and size: `slots` has the engine's numbers of the slots that `free` counts from 0."""

    def __init__(self, slots: list[int], per_node: int, make: MakeFreeSlots) -> None:
        self.slots = slots
        self.per_node = per_node
        self.places = {slot: place for place, slot in enumerate(slots)}
        self.free = make(len(slots), per_node)

    def in_engine(self, block: Block | None) -> Block | None:
        """Return a block by the engine's numbers."""
        return None if block is None else tuple(self.slots[place] for place in block)

    def own_places(self, slots: Iterable[int]) -> Block:
        """Return the places of those slots that are of this kind."""
        return tuple(self.places[slot] for slot in slots if slot in self.places)


class MixedNodes:
    """The free slots of several kinds of nodes, the fastest first."""

    def __init__(self, nodes: tuple[NodeShape, ...], start: int, make: MakeFreeSlots) -> None:
        found: dict[NodeShape, list[int]] = {}
        for node, slots in zip(nodes, node_slots(nodes), strict=True):
            found.setdefault(node, []).extend(slots)
        # Among equally fast nodes the larger ones come first: ranks talk faster inside a node.
        order = sorted(found, key=lambda shape: (-shape.speed, -shape.devices))
        if max(map(len, found.values())) >= start:
            self._kinds = [_Kind(found[shape], shape.devices, make) for shape in order]
        else:
            # No kind has room for a single trial: all of them together are one, the fastest first.
            sizes = {node.devices for node in nodes}
            per_node = sizes.pop() if len(sizes) == 1 else 1
            self._kinds = [_Kind([slot for shape in order for slot in found[shape]], per_node, make)]

    @property
    def free(self) -> int:
        """How many slots are free."""
        return sum(kind.free.free for kind in self._kinds)

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of blocks, ascending, and their doublings up to all slots together."""
        found = {size for kind in self._kinds for size in kind.free.sizes()}
        joined, slots = 2 * max(found), sum(len(kind.slots) for kind in self._kinds)
        while len(self._kinds) > 1 and joined <= slots:
            found.add(joined)
            joined *= 2
        return tuple(sorted(found))

    def take(self, size: int) -> Block | None:
        """Return a block of the fastest nodes that have one, else whole nodes of several kinds."""
        for kind in self._kinds:
            if (block := kind.in_engine(kind.free.take(size))) is not None:
                return block
        return self._join((), size)

    def grow(self, block: Block, size: int) -> Block | None:
        """Return a larger block around this one, else of other nodes as fast, else of several kinds."""
        for kind in self._kinds:
            places = kind.own_places(block)
            if len(places) == len(block) and (grown := kind.in_engine(kind.free.grow(places, size))) is not None:
                return grown
        return next(filter(None, (kind.in_engine(kind.free.take(size)) for kind in self._kinds)), None) or self._join(
            block, size
        )

    def give(self, slots: Iterable[int]) -> None:
        """Take slots back."""
        returned = list(slots)
        for kind in self._kinds:
            if places := kind.own_places(returned):
                kind.free.give(places)

    def withdraw(self, node: range) -> None:
        """Leave out a node's slots."""
        for kind in self._kinds:
            places = sorted(kind.own_places(node))
            for first in places[:: kind.per_node]:
                kind.free.withdraw(range(first, first + kind.per_node))

    def _join(self, block: Block, size: int) -> Block | None:
        """Return whole nodes of several kinds, fastest first, if no kind has so many slots; None if they are not free.

        The members of a joined gang wait for its slowest: whether it pays is for who asks.
        """
        if size <= max(len(kind.slots) for kind in self._kinds):
            return None
        taken: list[int] = []
        for kind in self._kinds:
            while len(block) + len(taken) < size and (more := kind.in_engine(kind.free.take(kind.per_node))):
                taken.extend(more)
        if len(block) + len(taken) < size:
            self.give(taken)
            return None
        return tuple(sorted((*block, *taken)))
