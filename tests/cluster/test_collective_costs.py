"""Costs of collectives: Hockney's formulas, the algorithm chosen, and how costs move with what they depend on."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.cluster import Cluster, NetworkLevel, collective_seconds, contention
from trainwright.cluster.collectives import (
    CollectiveCost,
    chunk_count,
    collective_candidates,
    collective_times,
    tree_seconds,
)
from trainwright.cluster.network import OPERATIONS, ExchangeTimes
from trainwright.errors import InputError

sizes = st.integers(0, 10**10)
speeds = st.floats(1e7, 1e12)
latencies = st.floats(1e-8, 1e-2)


@st.composite
def clusters(draw):
    node, nodes = draw(st.sampled_from([1, 2, 4, 6])), draw(st.sampled_from([1, 2, 4, 12]))
    outer = NetworkLevel(
        name="switch",
        devices=max(2, node * nodes) if node * nodes > node else node + 1,
        alpha=draw(latencies),
        bandwidth=draw(speeds),
        links_per_node=draw(st.integers(1, 4)),
        oversubscription=draw(st.sampled_from([1.0, 2.0, 3.0])),
    )
    inner = NetworkLevel(name="node", devices=node, alpha=draw(latencies), bandwidth=draw(speeds))
    return Cluster(nodes, node, tiers=(*((inner,) if node > 1 else ()), outer))


@st.composite
def calls(draw):
    """Draw a cluster and a group on it."""
    cluster = draw(clusters())
    ranks = draw(st.sampled_from([n for n in range(1, cluster.devices + 1) if cluster.devices % n == 0]))
    rest = cluster.devices // ranks
    return cluster, {"ranks": ranks, "stride": draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))}


def abci():
    return Cluster(
        1088,
        4,
        tiers=(
            NetworkLevel(name="nvlink", devices=4, alpha=9e-6, bandwidth=50e9),
            NetworkLevel(name="leaf", devices=68, alpha=40.31e-6, bandwidth=12.5e9, links_per_node=2),
            NetworkLevel(name="rack", devices=136, alpha=40.49e-6, bandwidth=12.5e9, links_per_node=2),
            NetworkLevel(
                name="spine", devices=4352, alpha=40.98e-6, bandwidth=12.5e9, links_per_node=2, oversubscription=3
            ),
        ),
    )


def test_formulas_by_hand():
    """The formulas of each collective on 8 ranks of one tier, 1,000 bytes, alpha 1 s, beta 0.01 s."""
    cluster = Cluster(1, 8, tiers=(NetworkLevel(name="node", devices=8, alpha=1.0, bandwidth=100.0),))
    candidates = {op: collective_candidates(cluster, op, 1000, ranks=8) for op in OPERATIONS}
    assert candidates["all_reduce"]["ring"] == pytest.approx(2 * 7 * (1 + 1000 / 8 * 0.01))
    assert candidates["all_gather"]["ring"] == pytest.approx(7 * (1 + 1.25))
    assert candidates["reduce_scatter"] == candidates["all_gather"]
    assert candidates["all_to_all"] == {"pairwise": pytest.approx(7 * 2.25)}
    assert candidates["send"] == {"direct": pytest.approx(11.0)}
    # k = sqrt(2 * 10 / 1) = 4.47: (3 + k - 1)(1 + 10 / k) is 21 at k = 4 and 21 at k = 5.
    assert candidates["broadcast"] == {"tree": pytest.approx(21.0)}
    assert candidates["all_reduce"]["tree"] == pytest.approx(42.0)


def test_hierarchical_by_hand():
    """RS inside + AR of a g-th across + AG inside; the g rings across share a node's one uplink."""
    tiers = (
        NetworkLevel(name="node", devices=4, alpha=1.0, bandwidth=100.0),
        NetworkLevel(name="switch", devices=12, alpha=2.0, bandwidth=10.0),
    )
    inside = 2 * 3 * (1 + 1000 / 4 / 100)
    for links, phi in ((1, 4), (2, 2), (4, 1), (8, 1)):
        cluster = Cluster(3, 4, tiers=(tiers[0], dataclasses.replace(tiers[1], links_per_node=links)))
        found = collective_candidates(cluster, "all_reduce", 1000, ranks=12)
        ring = 2 * 2 * (2 + 250 / 3 / 10 * phi)
        pieces = [2 * (2 + k - 1) * (2 + 250 / k / 10 * phi) for k in range(1, 251)]
        assert found["hierarchical"] == pytest.approx(inside + min(ring, *pieces))


def test_paradl_all_reduce():
    """The gradient exchange of ResNet-50 on 64 devices of ABCI, ParaDL's 5.6783 s an epoch, comes out."""
    tier = NetworkLevel(name="all", devices=64, alpha=30.31e-6, bandwidth=12.5e9)
    cluster = Cluster(64, 1, tiers=(tier,))
    each = collective_candidates(cluster, "all_reduce", 4 * 22_734_016, ranks=64)["ring"]
    assert math.ceil(1_280_000 / 4096) * each == pytest.approx(5.6783, rel=1e-3)


def test_selection_names_the_algorithm_and_the_tier():
    """Small messages go by tree, large ones round rings; a group inside a node never meets the network."""
    cluster = abci()
    small, large = (collective_seconds(cluster, "all_reduce", size, ranks=64, stride=4) for size in (1e3, 1e10))
    assert collective_seconds(cluster, "all_reduce", 1e9, ranks=1024).algorithm == "hierarchical"
    assert (small.algorithm, small.tier) == ("tree", "spine")
    assert (large.algorithm, large.tier) == ("ring", "spine")
    assert collective_seconds(cluster, "all_gather", 1e6, ranks=4).tier == "nvlink"
    assert collective_seconds(cluster, "send", 1e6, ranks=2, stride=68).tier == "rack"
    assert collective_seconds(cluster, "send", 1e6, ranks=2, stride=4).tier == "leaf"


@settings(max_examples=50)
@given(call=calls(), size=sizes, operation=st.sampled_from(OPERATIONS))
def test_selected_is_the_least(call, size, operation):
    """The cost is that of the algorithm named, no candidate is cheaper, and arrays cost what numbers cost."""
    cluster, group = call
    cost = collective_seconds(cluster, operation, size, **group)
    candidates = collective_candidates(cluster, operation, size, **group)
    assert cost.seconds == candidates[cost.algorithm] == min(candidates.values())
    assert math.isfinite(cost.seconds)
    assert cost.seconds >= 0
    times = collective_times(cluster, operation, [size, size + 1, 2 * size], **group)
    assert times[0] == pytest.approx(cost.seconds, rel=1e-12)
    assert times[2] == pytest.approx(collective_seconds(cluster, operation, 2 * size, **group).seconds, rel=1e-12)


@settings(max_examples=50)
@given(cluster=clusters(), size=sizes, operation=st.sampled_from(OPERATIONS))
def test_a_group_of_one_exchanges_nothing(cluster, size, operation):
    """One rank costs nothing, of whatever stride."""
    cost = collective_seconds(cluster, operation, size, ranks=1)
    assert (cost.seconds, cost.algorithm) == (0.0, "none")


@settings(max_examples=50)
@given(call=calls(), size=sizes)
def test_all_reduce_is_reduce_scatter_and_all_gather(call, size):
    """In ring cost."""
    cluster, group = call
    ring = {
        op: collective_candidates(cluster, op, size, **group) for op in ("all_reduce", "reduce_scatter", "all_gather")
    }
    name = "ring" if group["ranks"] > 1 else "none"
    assert ring["all_reduce"][name] == pytest.approx(ring["reduce_scatter"][name] + ring["all_gather"][name])


@settings(max_examples=50)
@given(
    call=calls(), size=sizes, more=st.integers(0, 10**9), factors=st.tuples(st.floats(1, 10), st.floats(1, 10)),
    operation=st.sampled_from(OPERATIONS),
)  # fmt: skip
def test_costs_rise_with_what_slows_them(call, size, more, factors, operation):
    """Time does not fall with bytes, alpha or flows, nor rise with bandwidth."""
    cluster, group = call
    slower, flows = factors
    base = collective_seconds(cluster, operation, size, **group).seconds
    least = base * (1 - 1e-12)
    assert collective_seconds(cluster, operation, size + more, **group).seconds >= least
    assert collective_seconds(cluster, operation, size, **group, flows=flows).seconds >= least
    for change in ("alpha", "bandwidth"):
        factor = slower if change == "alpha" else 1 / slower
        tiers = tuple(dataclasses.replace(tier, **{change: getattr(tier, change) * factor}) for tier in cluster.tiers)
        changed = dataclasses.replace(cluster, tiers=tiers)
        assert collective_seconds(changed, operation, size, **group).seconds >= least


@settings(max_examples=50)
@given(size=st.integers(0, 300), ranks=st.integers(2, 40), alpha=st.floats(0, 10), beta=st.floats(1e-3, 10))
def test_chunks_are_the_best_of_all(size, ranks, alpha, beta):
    """No number of chunks of a byte or more is cheaper than the one chosen."""
    depth = math.ceil(math.log2(ranks))
    every = [(depth + k - 1) * (alpha + size * beta / k) for k in range(1, max(1, size) + 1)]
    assert tree_seconds(size, ranks, alpha, beta) == pytest.approx(min(every), rel=1e-12)
    assert 1 <= chunk_count(size, ranks, alpha, beta) <= max(1, size)


def test_data_groups_of_a_hybrid_share_uplinks():
    """Flows given by `contention` multiply the seconds a byte of the ring, and only those."""
    cluster = abci()
    flows = contention(cluster, ranks=16, stride=4)
    alone = collective_candidates(cluster, "all_reduce", 1e8, ranks=16, stride=4)["ring"]
    shared = collective_candidates(cluster, "all_reduce", 1e8, ranks=16, stride=4, flows=flows)["ring"]
    latency = 2 * 15 * 40.31e-6
    assert shared - latency == pytest.approx(2 * (alone - latency))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"operation": "allreduce"}, r"got 'allreduce'; allowed: 'all_reduce', .*did you mean 'all_reduce'"),
        ({"bytes": -1}, "bytes of all_reduce: got -1.0; allowed: numbers >= 0"),
        ({"bytes": math.nan}, "got nan; allowed: numbers >= 0"),
        ({"flows": 0.5}, "flows: got 0.5; allowed: a number >= 1"),
        ({"ranks": 0}, "got groups of 0 ranks"),
        ({"ranks": 5000}, r"5000 ranks .* at most 4352"),
        ({"stride": 0}, "stride 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, sentence):
    """With the value and what is allowed."""
    given = {"operation": "all_reduce", "bytes": 1e6, "ranks": 8, **arguments}
    with pytest.raises(InputError, match=sentence):
        collective_seconds(abci(), given.pop("operation"), given.pop("bytes"), **given)


def test_no_tier_no_time():
    """A cluster without tiers has no times, but for a group of one."""
    with pytest.raises(InputError, match="no tier joins 8 ranks with stride 1; allowed: groups within 1 devices"):
        collective_seconds(Cluster(2, 4), "all_reduce", 1, ranks=8)
    assert np.array_equal(collective_times(Cluster(), "send", [1.0, 2.0], ranks=1), [0.0, 0.0])


def test_known_algorithms_are_taken():
    """A tier that names an operation's algorithm gets it where the group can use it, cheapest or not."""
    tiers = [dataclasses.replace(tier, algorithms={"all_reduce": "hierarchical"}) for tier in abci().tiers]
    cluster = dataclasses.replace(abci(), tiers=tuple(tiers))
    assert collective_seconds(abci(), "all_reduce", 1, ranks=6).algorithm == "tree"
    assert collective_candidates(cluster, "all_reduce", 1, ranks=8).keys() == {"hierarchical"}
    assert collective_candidates(cluster, "all_reduce", 1, ranks=4).keys() == {"ring", "tree"}
    assert collective_candidates(cluster, "all_gather", 1, ranks=8).keys() == {"ring", "hierarchical"}


def test_measured_times_come_first():
    """A table is read at its points, between, below and above them, and slowed by flows that share the link."""
    times = ExchangeTimes(operation="all_reduce", tier="nvlink", ranks=2, bytes=(100, 10_000), seconds=(1.0, 100.0))
    cluster = dataclasses.replace(abci(), measured=(times,))
    found = collective_times(cluster, "all_reduce", [1, 100, 1000, 10_000, 20_000], ranks=2)
    assert found == pytest.approx([1, 1, 10, 100, 200])
    assert collective_seconds(cluster, "all_reduce", 1000, ranks=2) == CollectiveCost(
        pytest.approx(10), "measured", "nvlink"
    )
    assert collective_seconds(cluster, "all_reduce", 1000, ranks=2, flows=2).seconds == pytest.approx(19)
    for operation, group in (
        ("all_reduce", {"ranks": 4}),
        ("all_gather", {"ranks": 2}),
        ("all_reduce", {"ranks": 2, "stride": 4}),
    ):
        assert collective_seconds(cluster, operation, 1000, **group) == collective_seconds(
            abci(), operation, 1000, **group
        )


def test_measured_times_hold_for_groups_that_lie_alike():
    """Two ranks of each node are not one of each, and a table that says which is not read for the other."""
    cluster = dataclasses.replace(
        abci(),
        measured=tuple(
            ExchangeTimes(operation="all_reduce", tier="leaf", ranks=8, on_node=k, bytes=(100,), seconds=(float(k),))
            for k in (1, 4)
        ),
    )
    for stride, seconds in ((1, 4.0), (4, 1.0), (8, 1.0)):
        assert collective_seconds(cluster, "all_reduce", 100, ranks=8, stride=stride).seconds == seconds
    assert collective_seconds(cluster, "all_reduce", 100, ranks=8, stride=2).algorithm != "measured"


def test_figures_of_other_sizes_are_not_asked_for():
    """A tier that was measured with two ranks on shared processors says nothing of four."""
    tier = NetworkLevel(name="cores", devices=8, alpha=1e-4, bandwidth=1e9, worlds=(2,))
    cluster = Cluster(1, 8, tiers=(tier,))
    assert collective_seconds(cluster, "all_reduce", 1e6, ranks=2).algorithm == "ring"
    with pytest.raises(
        InputError, match=r"tier 'cores': got a group of 4 ranks; allowed: 2, .* calibrate with 4 ranks"
    ):
        collective_seconds(cluster, "all_reduce", 1e6, ranks=4)
