"""Contention and placement against flows counted one by one on a topology spelled out as links."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.cluster import Cluster, NetworkLevel, contention
from trainwright.cluster.placement import _highest_load, _level_boundaries, group_tier, groups
from trainwright.errors import InputError


def network(nodes=8, node=4, *, links=1, levels=(), oversubscription=1.0):
    sizes = [*(level for level in levels if level < nodes * node), nodes * node]
    tiers = [
        NetworkLevel(
            name=f"level{i}", devices=size, alpha=1e-5, bandwidth=1e10, links_per_node=links,
            oversubscription=oversubscription if i == len(sizes) - 1 else 1.0,
        )
        for i, size in enumerate(sizes)
        if size > node
    ]  # fmt: skip
    inner = (NetworkLevel(name="node", devices=node, alpha=1e-6, bandwidth=1e11),) if node > 1 else ()
    return Cluster(nodes, node, tiers=(*inner, *tiers))


@st.composite
def topologies(draw):
    """Up to 24 devices in up to three levels of switches."""
    node = draw(st.integers(1, 4))
    leaf = draw(st.integers(1, 3))
    racks = draw(st.integers(1 + (node * leaf == 1), 24 // (node * leaf)))
    levels = [node * leaf] if leaf > 1 and racks > 1 else []
    return network(
        leaf * racks,
        node,
        links=draw(st.integers(1, 3)),
        levels=levels,
        oversubscription=draw(st.sampled_from([1.0, 2.0, 3.0])),
    )


def divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def placed(draw):
    """Draw a topology and the groups of a random axis on some of its devices."""
    cluster = draw(topologies())
    devices = draw(st.integers(1, cluster.devices))
    ranks = draw(st.sampled_from(divisors(devices)))
    return cluster, devices, ranks, draw(st.sampled_from(divisors(devices // ranks)))


def counted(cluster, rings, place=lambda rank: rank):
    """Send one message along every edge of every ring, link by link, and return the highest load of a link.

    `place` says on which device a rank is.
    """
    load = Counter()
    outer = [tier for tier in cluster.tiers if tier.devices > cluster.devices_per_node]
    for ring in rings:
        if len(ring) < 2:
            continue
        for source, target in zip(ring, [*ring[1:], ring[0]], strict=True):
            a, b = place(int(source)), place(int(target))
            below = cluster.devices_per_node
            for tier in outer:
                if a // below == b // below:
                    break
                capacity = below / cluster.devices_per_node * tier.links_per_node / tier.oversubscription
                load["up", below, a // below] += 1 / capacity
                load["down", below, b // below] += 1 / capacity
                below = tier.devices
    return max(1.0, *load.values()) if load else 1.0


@settings(max_examples=50)
@given(placed())
def test_phi_equals_flows_counted_one_by_one(case):
    """On random small topologies, placements and axes."""
    cluster, devices, ranks, stride = case
    rings = groups(devices, ranks=ranks, stride=stride)
    expected = counted(cluster, rings.tolist())
    assert contention(cluster, ranks=ranks, stride=stride, devices=devices) == pytest.approx(expected)
    assert _highest_load(_level_boundaries(cluster), rings) == pytest.approx(expected)


@settings(max_examples=50)
@given(placed(), st.randoms(use_true_random=False))
def test_phi_does_not_know_the_names_of_nodes(case, random):
    """Renaming nodes below a switch, and switches below a switch, changes nothing."""
    cluster, devices, ranks, stride = case
    sizes = [cluster.devices_per_node, *(t.devices for t in cluster.tiers if t.devices > cluster.devices_per_node)]
    name = np.arange(cluster.devices)
    for inside, outside in itertools.pairwise(sizes):
        shape = (-1, outside // inside, inside)
        blocks = name.reshape(shape)
        for block in blocks:
            order = list(range(outside // inside))
            random.shuffle(order)
            block[:] = block[order]
        name = blocks.reshape(-1)
    rings = groups(devices, ranks=ranks, stride=stride)
    assert _highest_load(_level_boundaries(cluster), name[rings]) == _highest_load(_level_boundaries(cluster), rings)


@pytest.mark.parametrize("nodes", [6, 8, 64])
def test_one_ring_through_all_ranks_shares_nothing(nodes):
    """Each node has one flow out and one in, whatever the links."""
    assert contention(network(nodes), ranks=4 * nodes) == 1.0
    assert contention(network(nodes, links=2, levels=[16], oversubscription=3), ranks=4 * nodes) == 1.0


@pytest.mark.parametrize(("links", "phi"), [(1, 4.0), (2, 2.0), (4, 1.0), (8, 1.0)])
def test_data_groups_of_a_hybrid_of_four(links, phi):
    """Four rings leave each node in each direction: two uplinks carry two each, one carries all four."""
    cluster = network(16, links=links)
    assert contention(cluster, ranks=16, stride=4) == phi
    assert contention(cluster, ranks=16, stride=4, devices=64) == phi
    assert contention(cluster, ranks=4) == 1.0  # the groups inside the nodes never leave them


def test_oversubscribed_levels_have_fewer_links():
    """Eight rings that leave a rack of two nodes with one uplink each share 2 / 4 of a link: 16 times slower."""
    cluster = network(8, levels=[8], oversubscription=4)
    assert contention(cluster, ranks=4, stride=8) == 16.0
    assert contention(network(8, levels=[8]), ranks=4, stride=8) == 4.0


def test_later_blocks_may_lie_across_nodes():
    """Groups of three on nodes of four: the second and third groups leave their node, the first does not."""
    cluster = network(3)
    assert group_tier(cluster, ranks=3).name == "node"
    assert group_tier(cluster, ranks=3, devices=12).name == "level0"
    assert group_tier(cluster, ranks=2, stride=2).name == "node"
    assert group_tier(cluster, ranks=2, stride=4).name == "level0"


@settings(max_examples=50)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_groups_of_an_axis_differ_only_there(degrees, data):
    """Every rank is in one group; a group's ranks have equal coordinates but for the axis, which counts up."""
    axis = data.draw(st.integers(0, len(degrees) - 1))
    rows = groups(math.prod(degrees), ranks=degrees[axis], stride=math.prod(degrees[:axis]))
    assert sorted(rows.ravel()) == list(range(math.prod(degrees)))
    for row in rows.tolist():
        coordinates = [[rank // math.prod(degrees[:k]) % degree for k, degree in enumerate(degrees)] for rank in row]
        assert [each[axis] for each in coordinates] == list(range(degrees[axis]))
        assert len({tuple(each[:axis] + each[axis + 1 :]) for each in coordinates}) == 1
    assert np.all(np.diff(rows, axis=1) == math.prod(degrees[:axis]))


def test_groups_that_do_not_divide_are_refused():
    """With what would be allowed."""
    with pytest.raises(InputError, match=r"got 3 ranks with stride 2 on 8 devices; allowed: .* a multiple of 6"):
        groups(8, ranks=3, stride=2)
    with pytest.raises(InputError, match=r"on 12 devices; allowed: .* at most 8"):
        contention(network(2), ranks=3, devices=12)
