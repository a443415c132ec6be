"""Files of clusters: what is written is read back, and what is wrong is refused with its key."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.cluster import Cluster, Device, NetworkLevel
from trainwright.cluster.cluster import PRESETS, RUNTIMES
from trainwright.cluster.device import DeviceFailures, Storage
from trainwright.cluster.network import OPERATIONS, ExchangeTimes
from trainwright.errors import InputError

SPINE = """\
# four GPUs a node
name = "example"
device = {kind = "V100-16GB", memory_bytes = 16e9, flops = {fp32 = 15.7e12}, memory_bandwidth = 900e9}
tier = [{name = "nvlink", devices = 4,    alpha = 9e-6,     bandwidth = 50e9},
        {name = "leaf",   devices = 68,   alpha = 40.31e-6, bandwidth = 12.5e9, links_per_node = 2},
        {name = "spine",  devices = 4352, alpha = 40.98e-6, bandwidth = 12.5e9, links_per_node = 2}]
storage = {node_read = 2e9}
"""

names = st.text(max_size=8)
figures = st.floats(1e6, 1e15)
shares = st.floats(1e-6, 1.0)
errors = st.dictionaries(names, st.floats(0, 10), max_size=3)


@st.composite
def tables(draw, tier):
    sizes = sorted(draw(st.sets(st.integers(1, 10**9), min_size=1, max_size=4)))
    return ExchangeTimes(
        operation=draw(st.sampled_from(OPERATIONS)),
        tier=tier,
        ranks=draw(st.integers(2, 64)),
        on_node=draw(st.integers(0, 4)),
        bytes=tuple(sizes),
        seconds=tuple(draw(st.floats(1e-9, 1e3)) for _ in sizes),
    )


@st.composite
def clusters(draw):
    node, nodes = draw(st.integers(1, 8)), draw(st.integers(1, 100))
    sizes = [node, node * nodes] if node > 1 and nodes > 1 else [node * nodes]
    tiers = [
        NetworkLevel(
            name=f"{draw(names)} {place}",
            devices=size,
            alpha=draw(st.floats(0, 0.1)),
            bandwidth=draw(figures),
            links_per_node=draw(st.integers(1, 9)),
            oversubscription=draw(st.floats(1, 9)),
            algorithms=draw(st.sampled_from([{}, {"all_reduce": "ring"}])),
            worlds=tuple(draw(st.lists(st.integers(2, 99), max_size=2))),
        )
        for place, size in enumerate(sizes)
        if size > 1
    ]
    return Cluster(
        nodes,
        node,
        name=draw(names),
        source=draw(names),
        verified=draw(st.booleans()),
        device=Device(
            kind=draw(names),
            memory_bytes=draw(st.integers(10**8, 10**12)),
            flops=draw(st.dictionaries(names, figures, max_size=3)),
            memory_bandwidth=draw(figures),
            launch_seconds=draw(shares),
            efficiency=draw(st.dictionaries(names, shares, max_size=2)),
        ),
        tiers=tuple(tiers),
        measured=tuple(draw(tables(tier.name)) for tier in tiers[: draw(st.integers(0, 2))]),
        storage=draw(st.builds(Storage, node_read=figures, write=figures) | st.just(Storage())),
        failure=draw(st.builds(DeviceFailures, device_mtbf_hours=figures) | st.just(DeviceFailures())),
        overhead_seconds=draw(shares),
        pass_seconds=(0.25, 0.5),
        runtime_seconds=draw(st.dictionaries(st.sampled_from(RUNTIMES), st.tuples(shares, shares))),
        errors=draw(errors),
        conditions=draw(st.dictionaries(names, names, max_size=2)),
    )


def test_round_trip(tmp_path_factory):
    """Any cluster, written and read, is equal to itself."""
    path = tmp_path_factory.mktemp("round") / "cluster.toml"

    @settings(max_examples=40)
    @given(clusters())
    def back_and_forth(cluster):
        cluster.save(path)
        assert Cluster.load(path) == cluster

    back_and_forth()


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "laptop"])
def test_presets(tmp_path, name):
    """Every preset is unverified, can be asked for a part, and survives a file."""
    cluster = Cluster.preset(name)
    assert (cluster.name, cluster.verified) == (name, False)
    assert Cluster.preset(name, nodes=1).devices == cluster.devices_per_node
    cluster.save(tmp_path / "preset.toml")
    assert Cluster.load(tmp_path / "preset.toml") == cluster
    for precision in ("fp32", "fp16"):
        assert cluster.device.flops[precision] > 1e12


def test_preset_of_the_table():
    """The machines of the table have its devices and links."""
    dgx, abci = Cluster.preset("dgx-h100", nodes=16), Cluster.preset("abci-v100")
    assert (dgx.devices, dgx.tiers[0].bandwidth, dgx.tiers[1].bandwidth, dgx.tiers[1].links_per_node) == (
        128,
        450e9,
        50e9,
        8,
    )
    assert (abci.devices, [tier.devices for tier in abci.tiers], abci.tiers[-1].oversubscription) == (
        4352,
        [4, 68, 136, 4352],
        3,
    )
    assert Cluster.preset("h200").tiers == ()


def test_a_file_by_hand(tmp_path):
    """Nodes and devices per node come from the tiers, absent figures are unknown."""
    path = tmp_path / "example.toml"
    path.write_text(SPINE)
    cluster = Cluster.load(path)
    assert (cluster.nodes, cluster.devices_per_node, cluster.device.memory_bytes) == (1088, 4, 16 * 10**9)
    assert cluster.storage == Storage(node_read=2e9)
    assert isinstance(cluster.device.memory_bytes, int)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("12.5e9, links_per_node = 2},", "-1e9},", "tier[1].bandwidth: got -1000000000.0; allowed: a"),
        ("bandwidth = 50e9", "bandwidth = 0", "tier[0].bandwidth: got 0; allowed: a number > 0"),
        ("alpha = 9e-6,     bandwidth = 50e9", "alpha = 9e-6", "tier[0].bandwidth: missing"),
        ("devices = 68", "devices = 4", "tier[1].devices: got 4; allowed: more than the 4 of the tier before"),
        ("devices = 68", "devices = 70", "tier[1].devices: got 70; allowed: a multiple or part of the 4 of a"),
        ("devices = 68", "devices = 6.5", "tier[1].devices: got 6.5; allowed: a whole number"),
        ("alpha = 9e-6", "alpha = nan", "tier[0].alpha: got nan; allowed: a number >= 0"),
        ("alpha = 9e-6", 'alpha = "9 us"', "tier[0].alpha: got '9 us'; allowed: a number"),
        ("alpha = 9e-6", "latency = 9e-6", "tier[0].latency: unknown key; allowed: name, devices, alpha, "),
        ("node_read", "node_raed", "storage.node_raed: unknown key; allowed: node_read, shared_read"),
        ("node_read = 2e9", "node_read = -1", "storage.node_read: got -1; allowed: a number >= 0"),
        ('name = "leaf"', 'name = "nvlink"', "tier[1].name: got 'nvlink'; allowed: a name that no other"),
        ('name = "example"\n', "", "name: missing"),
        ('kind = "V100-16GB", ', "", "device.kind: missing"),
        ("fp32 = 15.7e12", "fp32 = 0.0", "device.flops.fp32: got 0.0; allowed: a number > 0"),
        ("{node_read = 2e9}", "7", "storage: got 7; allowed: a table of keys"),
        ('name = "example"', "name = 3", "name: got 3; allowed: a text"),
        ('name = "example"', 'name = "x"\nverified = 1', "verified: got 1; allowed: true or false"),
        ('name = "example"', 'name = "x"\nschema = 2', "schema: got 2; allowed: 1"),
        ('name = "example"', 'name = "x"\nnodes = 2000', "tier[2].devices: got 4352; allowed: at least the 8000"),
        ('name = "example"', 'name = "x"\nnodes = 0', "nodes: got 0; allowed: a whole number >= 1"),
        ("links_per_node = 2}]", 'algorithms = {send = "ring"}}]', "algorithms.send: got 'ring'; allowed: 'direct'"),
        ("storage", "storage = ", "is no TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_key(tmp_path, old, new, sentence):
    """Every refusal names the file, the key, the value and what is allowed."""
    path = tmp_path / "wrong.toml"
    assert old in SPINE
    path.write_text(SPINE.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        Cluster.load(path)
    assert str(error.value).startswith(f"cluster file {path}")
    assert sentence in str(error.value)


def test_a_missing_link_is_refused(tmp_path):
    """A cluster of several devices has a tier that joins them."""
    path = tmp_path / "lonely.toml"
    path.write_text(re.sub(r"tier = \[.*\]\n", "nodes = 4\n", SPINE, flags=re.DOTALL))
    with pytest.raises(InputError, match="tier: missing; allowed: tiers that join the cluster's 4 devices"):
        Cluster.load(path)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("bandwidth = 50e9", "bandwidth = 50", "tier[0].bandwidth: got 50; allowed: at least 1e+06 bytes per second"),
        ("alpha = 9e-6", "alpha = 9", "tier[0].alpha: got 9; allowed: at most 0.1 seconds"),
        ("memory_bytes = 16e9", "memory_bytes = 16", "device.memory_bytes: got 16; allowed: at least 1e+08 bytes"),
        ("memory_bandwidth = 900e9", "memory_bandwidth = 900", "device.memory_bandwidth: got 900; allowed"),
        ("node_read = 2e9", "node_read = 2", "storage.node_read: got 2; allowed"),
    ],
)
def test_suspicious_units_are_refused(tmp_path, old, new, sentence):
    """GB in place of bytes, microseconds in place of seconds."""
    path = tmp_path / "units.toml"
    path.write_text(SPINE.replace(old, new, 1))
    with pytest.raises(InputError, match=re.escape(sentence)):
        Cluster.load(path)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Cluster.preset("dgx-h10"), r"got 'dgx-h10'; allowed: abci-v100, .*did you mean 'dgx-h100'"),
        (lambda: Cluster.preset("polaris", nodes=561), "nodes of polaris: got 561; allowed: .* from 1 to 560"),
        (lambda: Cluster.preset("dgx-a100", nodes=0), "nodes of dgx-a100: got 0"),
        (lambda: Cluster.load("no-such-file.toml"), "'no-such-file.toml': there is no such file"),
        (lambda: Cluster.preset("h200").save("/no-such-folder/x.toml"), "cannot be written"),
        (lambda: dataclasses.replace(Cluster.preset("abci-v100"), nodes=2000), r"tiers\[3\].devices: got 4352"),
        (lambda: Device(efficiency={"conv": 1.5}), "efficiency.conv: got 1.5; allowed: a number above 0 and at most 1"),
        (lambda: ExchangeTimes(operation="send", tier="a", ranks=2, bytes=(2, 1), seconds=(1.0, 1.0)), "got 1"),
        (lambda: ExchangeTimes(operation="gather", tier="a", ranks=2, bytes=(1,), seconds=(1.0,)), "got 'gather'"),
    ],
)  # fmt: skip
def test_bad_names_and_figures(call, sentence):
    """Presets, paths and records refuse what they cannot be."""
    with pytest.raises(InputError, match=sentence):
        call()
