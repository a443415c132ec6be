"""Plans for nodes that differ: a step goes at the slowest, fits into the smallest, and may leave some out."""

import json
from dataclasses import replace
from itertools import combinations

import pytest
from click.testing import CliRunner
from oracle_cases import DEVICE, make_cluster, make_transformer

from trainwright.cli.plan import app
from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.plan import Degrees, Oracle, judge
from trainwright.plan.oracle import NoPlan

GB = 10**9
CASES = [
    {"node_speeds": (1.0, 1.0, 1.0, 0.25)},
    {"node_speeds": (0.5, 1.0, 0.95, 0.9)},
    {"node_devices": (4, 4, 2, 4)},
    {"node_memory_bytes": (16 * GB, 16 * GB, GB // 10, 16 * GB)},
    {"node_links": (1.0, 0.01, 1.0, 1.0)},
    {"node_speeds": (1.0, 0.5, 1.0, 0.5), "node_devices": (2, 4, 4, 4), "node_memory_bytes": (GB // 10, GB, GB, GB)},
]


def equal(changes, nodes, size):
    """Return the cluster of equal nodes that these are at worst, by the definition."""

    def least(name, usual):
        return min((changes.get(name) or (usual,) * 4)[node] for node in nodes)

    sizes = changes.get("node_devices", (4,) * 4)
    count = sum(sizes[node] // size for node in nodes)
    speed = least("node_speeds", 1.0)
    device = replace(
        DEVICE,
        flops={name: flops * speed for name, flops in DEVICE.flops.items()},
        memory_bandwidth=DEVICE.memory_bandwidth * speed,
        memory_bytes=least("node_memory_bytes", DEVICE.memory_bytes),
    )
    cluster = make_cluster(count, size, device=device)
    if not cluster.tiers:
        return cluster
    outside, links = cluster.tiers[-1], size / 4 * 2
    if outside.name == "outside":
        bandwidth = outside.bandwidth * least("node_links", 1.0) * min(1.0, links)
        outside = replace(outside, bandwidth=bandwidth, links_per_node=max(1, int(links)))
    return replace(cluster, tiers=(*(cluster.tiers[:-1] if size > 1 else ()), outside))


@pytest.mark.parametrize("changes", CASES, ids=str)
@pytest.mark.parametrize("goal", ["time", "device-hours", "memory"])
def test_the_best_choice_of_nodes(changes, goal):
    """By brute force over every set of nodes, taken as equal ones as good as the worst."""
    profile = make_transformer()
    cluster = replace(make_cluster(), **changes)
    values = {
        "time": lambda plan: plan.seconds_per_iteration,
        "device-hours": lambda plan: plan.seconds_per_iteration * plan.devices,
        "memory": lambda plan: plan.peak_bytes,
    }
    found = Oracle(cluster).rank(profile, batch=48, goal=goal, strategies=("data+fsdp+zero1",))
    sizes = changes.get("node_devices", (4,) * 4)
    best = {}
    for number in range(1, 5):
        for nodes in combinations(range(4), number):
            for size in (1, 2, 4):
                if all(sizes[node] >= size for node in nodes):
                    try:
                        ranking = Oracle(equal(changes, nodes, size)).rank(
                            profile, batch=48, goal=goal, strategies=("data+fsdp+zero1",)
                        )
                    except NoPlan:
                        continue
                    for plan in ranking:
                        best.setdefault(plan.strategy, []).append(values[goal](plan))
    assert {plan.strategy for plan in found} == set(best)
    for plan in found:
        assert values[goal](plan) <= min(best[plan.strategy]) * (1 + 1e-9)
        memory = min((changes.get("node_memory_bytes") or (16 * GB,) * 4)[node] for node in plan.nodes)
        assert plan.peak_bytes <= memory
        assert sum(sizes[node] for node in plan.nodes) >= plan.devices
        # The same plan asked for alone, on the nodes where it is fastest.
        alone = Oracle(cluster).forecast(profile, plan)
        assert alone.seconds_per_iteration <= plan.seconds_per_iteration * (1 + 1e-9)


def test_what_binds_is_said(tmp_path):
    """A much slower node is left out, a slightly slower one waits for nobody; the command names both."""
    profile = make_transformer(layers=8, hidden=2048, heads=16, sequence=512)
    slow = replace(make_cluster(), node_speeds=(1.0, 1.0, 1.0, 0.25))
    best = Oracle(slow).rank(profile, batch=48, strategies=("data",))[0]
    assert (best.nodes, best.devices, best.bound_by) == ((0, 1, 2), 12, "")
    slightly = replace(slow, node_speeds=(1.0, 1.0, 1.0, 0.9))
    best = Oracle(slightly).rank(profile, batch=48, strategies=("data",))[0]
    assert (best.nodes, best.devices, best.bound_by) == ((0, 1, 2, 3), 16, "0.9 of the speed (node 3)")
    # Nodes that are listed as equal are equal.
    same = Oracle(replace(slow, node_speeds=(1.0,) * 4)).rank(profile, batch=48)
    assert list(same) == list(Oracle(make_cluster()).rank(profile, batch=48))
    profile.save(tmp_path / "profile.json")
    slow.save(tmp_path / "slow.toml")
    assert Cluster.load(tmp_path / "slow.toml") == slow
    said = CliRunner().invoke(
        app, [str(tmp_path / "profile.json"), "--cluster", str(tmp_path / "slow.toml"), "--batch", "48", "--json"]
    )
    assert said.exit_code == 0, said.output
    assert "nodes 0-2: the best" in said.output
    assert json.loads(said.output.splitlines()[-1])["plans"][0]["nodes"] == [0, 1, 2]


def test_verdicts_fits_and_refusals():
    """A trial has to fit into the smallest device; runs of different nodes fit nothing."""
    profile = make_transformer(layers=8, hidden=2048)
    cluster = replace(make_cluster(), node_memory_bytes=(16 * GB, 16 * GB, 2 * GB, 16 * GB))
    verdict = judge(Oracle(cluster), profile, batch=64, devices=16)
    assert verdict.allowed_bytes == 2 * GB
    plan = Oracle(cluster).estimate(profile, batch=12, degrees=Degrees(data=12))
    assert plan.nodes == (0, 1, 3)  # it needs more than 2 GB
    with pytest.raises(InputError, match="fit: the nodes of 'made-up' differ; allowed: equal nodes"):
        Oracle(cluster).fit([])
    with pytest.raises(NoPlan, match="no strategy fits"):
        Oracle(cluster).rank(profile, batch=16, max_memory_bytes=1000)
    with pytest.raises(InputError, match=r"degrees: tensor: got 3"):
        Oracle(cluster).rank(profile, batch=16, degrees={"tensor": 3})
    with pytest.raises(InputError, match=r"Cluster.node_links: got .1.0.; allowed: one for each of the 4 nodes"):
        replace(cluster, node_links=(1.0,))
