"""A cluster from measured times: what was put into made-up times comes out, and its errors say what they leave."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.cluster import Cluster, collective_seconds, contention
from trainwright.cluster.calibration.fit_cluster import MeasuredLevel, fit_fields
from trainwright.cluster.device import Storage
from trainwright.cluster.network import ExchangeTimes
from trainwright.errors import InputError


def fit_cluster(measurements):
    """Return the cluster that a calibration with these measurements gives."""
    return Cluster(**fit_fields(**measurements))


SIZES = tuple(256 * 4**k for k in range(10))
STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


def level(alpha, beta, *, name="node", devices=8, worlds=(2, 4, 8), factor=1.0, **options):
    """Return a level on which every exchange takes what Hockney says, `factor` times."""
    exchanges = []
    for ranks in worlds:
        for operation in (*STEPS, "broadcast", "send"):
            steps = STEPS.get(operation, 0) * (ranks - 1)
            seconds = [steps * (alpha + size * beta / ranks) if steps else alpha + size * beta for size in SIZES]
            exchanges.append(
                ExchangeTimes(
                    operation=operation, tier=name, ranks=ranks, bytes=SIZES, seconds=tuple(factor * t for t in seconds)
                )
            )
    return MeasuredLevel(name=name, devices=devices, exchanges=tuple(exchanges), **options)


def figures(**options):
    work = [1e6 * 4**k for k in range(6)]
    given = {
        "name": "made-up",
        "source": "a test",
        "kind": "device",
        "products": {"fp32": [(each, each / 1e12) for each in work], "bf16": [(each, each / 4e12) for each in work]},
        "convolutions": [(each, 1e-6 + each / 5e11) for each in work],
        "copies": [(size, size / 1e11) for size in (1e6, 1e7, 1e8)],
        "launch_seconds": 5e-6,
    }
    return given | options


@settings(max_examples=50)
@given(alpha=st.floats(1e-7, 1e-3), bandwidth=st.floats(1e8, 1e12))
def test_links_come_out(alpha, bandwidth):
    """Latency and bandwidth from rings and messages of all sizes and worlds together."""
    cluster = fit_cluster(figures(devices_per_node=8, levels=(level(alpha, 1 / bandwidth),)))
    (tier,) = cluster.tiers
    assert (tier.alpha, tier.bandwidth) == (pytest.approx(alpha, rel=1e-6), pytest.approx(bandwidth, rel=1e-6))
    assert cluster.errors["node"] < 1e-6
    assert tier.worlds == ()


def test_devices_come_out():
    """Peaks by precision, shares of the peak by kind of layer, memory and host bandwidth."""
    cluster = fit_cluster(figures(host_copies=[(size, size / 2e10) for size in (1e6, 1e8)], memory_bytes=10**10))
    device = cluster.device
    assert device.flops == {"fp32": pytest.approx(1e12), "bf16": pytest.approx(4e12)}
    assert device.efficiency == {"linear": pytest.approx(1.0), "conv": pytest.approx(0.5)}
    assert (device.memory_bandwidth, device.host_bandwidth) == (pytest.approx(1e11), pytest.approx(2e10))
    assert (device.launch_seconds, device.memory_bytes) == (5e-6, 10**10)
    assert cluster.errors == {"compute": pytest.approx(0, abs=1e-6), "copies": pytest.approx(0, abs=1e-6)}
    assert cluster.verified
    assert cluster.devices == 1


def test_errors_are_what_the_fits_leave():
    """Rows alternately 10 % too long and too short leave an error of about 10 %."""
    noisy = [
        (work, seconds * (1.1 if place % 2 else 0.9)) for place, (work, seconds) in enumerate(figures()["copies"] * 3)
    ]
    cluster = fit_cluster(figures(copies=noisy))
    assert cluster.errors["copies"] == pytest.approx(0.1, rel=0.2)


def test_shared_processors_say_nothing_of_other_sizes():
    """Only groups that were measured have times, those that were measured, with the error of their repeats."""
    one = level(1e-4, 1e-9, devices=4, worlds=(2,), only_these_sizes=True, spreads=(0.03, -0.04))
    cluster = fit_cluster(figures(devices_per_node=4, levels=(one,)))
    assert cluster.tiers[0].worlds == (2,)
    assert cluster.errors["node"] == pytest.approx(0.0354, abs=1e-4)
    cost = collective_seconds(cluster, "all_reduce", 1024, ranks=2)
    assert (cost.algorithm, cost.seconds) == ("measured", pytest.approx(2 * (1e-4 + 512e-9)))
    with pytest.raises(InputError, match="calibrate with 4 ranks"):
        collective_seconds(cluster, "all_reduce", 1024, ranks=4)


def test_two_levels_and_storage(tmp_path):
    """Inside and between nodes are tiers of their own; the whole of it survives a file."""
    levels = (level(1e-6, 1e-11, devices=4, worlds=(2, 4)), level(1e-5, 1e-10, name="network", devices=32))
    storage = Storage(node_read=1e9, write=5e8)
    cluster = fit_cluster(
        figures(
            nodes=8,
            devices_per_node=4,
            levels=levels,
            storage=storage,
            errors={"storage": 0.2},
            conditions={"load": "0"},
        )
    )
    assert [(tier.name, tier.devices) for tier in cluster.tiers] == [("node", 4), ("network", 32)]
    assert [tier.bandwidth for tier in cluster.tiers] == [pytest.approx(1e11), pytest.approx(1e10)]
    assert [tier.links_per_node for tier in cluster.tiers] == [1, 4]
    assert (cluster.storage, cluster.errors["storage"]) == (storage, 0.2)
    cluster.save(tmp_path / "made-up.toml")
    assert Cluster.load(tmp_path / "made-up.toml") == cluster


@pytest.mark.parametrize(("flows", "links"), [(1.0, 4), (1.1, 4), (1.9, 2), (4.0, 1), (5.0, 1)])
def test_links_of_a_node_from_what_flows_do_to_each_other(flows, links):
    """Four flows at once that take twice as long as one have two links, and phi says so."""
    levels = (level(1e-6, 1e-11, devices=4, worlds=(2, 4)), level(1e-5, 1e-10, name="network", devices=8, flows=flows))
    cluster = fit_cluster(figures(nodes=2, devices_per_node=4, levels=levels))
    assert cluster.tiers[1].links_per_node == links
    assert contention(cluster, ranks=2, stride=4) == 4 / links


def test_groups_with_several_ranks_a_node_tell_nothing_of_one_link():
    """Their times are kept, and left out of the fit."""
    one = level(1e-5, 1e-10, name="network", devices=32, worlds=(2, 4))
    many = [dataclasses.replace(each, ranks=8, on_node=4, seconds=(1.0,) * 10) for each in one.exchanges]
    cluster = fit_cluster(
        figures(nodes=8, devices_per_node=4, levels=(dataclasses.replace(one, exchanges=(*one.exchanges, *many)),))
    )
    assert cluster.tiers[0].bandwidth == pytest.approx(1e10)
    assert len(cluster.measured) == 2 * len(one.exchanges)


def test_a_clock_set_back_is_refused():
    """And times that do not grow with the work, which have no rate."""
    with pytest.raises(InputError, match=r"measured times: got -1.0"):
        fit_cluster(figures(copies=[(1e6, -1.0), (1e7, 1.0)]))
    with pytest.raises(InputError, match="convolutions: got times that do not grow with the work"):
        fit_cluster(figures(convolutions=[(1e6, 1.0), (1e7, 0.5)]))
    falling = dataclasses.replace(level(1.0, 0.0, worlds=(2,)))
    with pytest.raises(InputError, match="tier node: got times that do not grow with the bytes"):
        fit_cluster(figures(devices_per_node=8, levels=(falling,)))
