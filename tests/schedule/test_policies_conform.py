"""Every policy that ships keeps the promises of its kind, and the rooms give disjoint blocks."""

from hypothesis import given
from hypothesis import strategies as st

from trainwright.schedule import BuddyAllocator, Doubling, DoublingAsPublished, Fixed, MarginalGain
from trainwright.schedule.allocator.free_slots import FixedBlocks
from trainwright.testing.policy import PolicyConformance


class TestFixed(PolicyConformance):
    def make_policy(self):
        return Fixed()


class TestFixedPairs(PolicyConformance):
    engines = ((2, 2), (3, 3), (8, 8), (12, 4))

    def make_policy(self):
        return Fixed(2)


class TestDoubling(PolicyConformance):
    def make_policy(self):
        return Doubling(start=1)


class TestDoublingInPairs(PolicyConformance):
    engines = ((2, 2), (3, 3), (8, 8), (12, 4))

    def make_policy(self):
        return Doubling(start=2, cap=4)


class TestDoublingByFours(PolicyConformance):
    def make_policy(self):
        return Doubling(start=1, factor=4, wait_seconds=20.0)


class TestDoublingAsPublished(PolicyConformance):
    engines = ((8, 8), (12, 4), (16, 4))

    def make_policy(self):
        return DoublingAsPublished(start=1)


class TestMarginalGain(PolicyConformance):
    def make_policy(self):
        return MarginalGain(start=1)


class TestMarginalGainOfNodes(PolicyConformance):
    engines = ((16, 4), (64, 4), (24, 4))

    def make_policy(self):
        return MarginalGain(start=4)


@given(
    per_node=st.integers(1, 9),
    nodes=st.integers(1, 6),
    rest=st.integers(0, 3),
    steps=st.lists(st.tuples(st.sampled_from(["take", "grow", "give", "shrink"]), st.integers(1, 20)), max_size=40),
)
def test_nodes_against_a_bitmap(per_node, nodes, rest, steps):
    """Blocks are disjoint, inside a node unless they are whole nodes, aligned in it, and all comes back."""
    slots = per_node * nodes + min(rest, per_node - 1)
    free_slots = BuddyAllocator(slots, per_node)
    taken: set[int] = set()
    blocks: list[tuple[int, ...]] = []
    for step, size in steps:
        if step == "take":
            block = free_slots.take(size)
            if block is None:
                assert not _could(taken, slots, per_node, size)
                continue
            _check(block, size, per_node, slots)
            assert not taken & set(block)
            taken |= set(block)
            blocks.append(block)
        elif blocks and step == "grow":
            block = blocks[size % len(blocks)]
            grown = free_slots.grow(block, len(block) * 2)
            if grown is None:
                continue
            _check(grown, len(block) * 2, per_node, slots)
            assert not (taken - set(block)) & set(grown)
            free_slots.give(sorted(set(block) - set(grown)))
            taken = (taken - set(block)) | set(grown)
            blocks[blocks.index(block)] = grown
        elif blocks and step == "give":
            block = blocks.pop(size % len(blocks))
            free_slots.give(block)
            taken -= set(block)
        elif blocks and step == "shrink":
            block = blocks.pop(size % len(blocks))
            half = block[: len(block) // 2]
            if half and (len(half) % per_node == 0 or len(half) & (len(half) - 1) == 0) and len(block) <= per_node:
                free_slots.give(block[len(half) :])
                taken -= set(block[len(half) :])
                blocks.append(half)
            else:
                free_slots.give(block)
                taken -= set(block)
        assert free_slots.free == slots - len(taken)
    for block in blocks:
        free_slots.give(block)
    assert free_slots.free == slots
    if nodes * per_node <= slots:
        assert free_slots.take(nodes * per_node) is not None


def _check(block, size, per_node, slots):
    assert len(block) >= size
    assert list(block) == sorted(set(block))
    assert 0 <= block[0] <= block[-1] < slots
    if len(block) < per_node:
        assert block[0] // per_node == block[-1] // per_node
        assert (block[0] % per_node) % len(block) == 0
        assert len(block) < 2 * size
    else:
        assert len(block) % per_node == 0


def _could(taken, slots, per_node, size):
    """Whether an aligned block of that size is free."""
    wanted = 1 << (size - 1).bit_length()
    starts = range(0, slots, per_node)
    free_nodes = [n for n in starts if n + per_node <= slots and not taken & set(range(n, n + per_node))]
    if wanted > per_node or size == per_node:
        return len(free_nodes) >= -(-size // per_node)
    return any(
        not taken & set(range(n + at, n + at + wanted))
        for n in starts
        for at in range(0, per_node - wanted + 1, wanted)
        if n + at + wanted <= slots
    )


@given(per_node=st.integers(1, 8), nodes=st.integers(1, 4), size=st.integers(1, 20))
def test_tiles(per_node, nodes, size):
    """Tiles are disjoint and do not cross nodes if they fit into one."""
    slots = per_node * nodes
    free_slots = FixedBlocks(slots, per_node, size)
    blocks = []
    while (block := free_slots.take(size)) is not None:
        blocks.append(block)
    flat = [slot for block in blocks for slot in block]
    assert len(flat) == len(set(flat))
    assert set(flat) <= set(range(slots))
    if size <= per_node:
        assert len(blocks) == nodes * (per_node // size)
        assert all(block[0] // per_node == block[-1] // per_node for block in blocks)
    assert free_slots.free == 0


def test_a_block_grows_in_its_place_where_its_buddies_are_free():
    """Also in the second half of a node."""
    free_slots = BuddyAllocator(8, 8)
    first, second = free_slots.take(4), free_slots.take(2)
    assert (first, second) == ((0, 1, 2, 3), (4, 5))
    assert free_slots.grow(second, 4) == (4, 5, 6, 7)
    assert free_slots.free == 0
