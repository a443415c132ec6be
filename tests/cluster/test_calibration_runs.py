"""Measuring this machine: alone, as ranks of gloo, and what is refused."""

import dataclasses
import os
import socket
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.cluster import Cluster, collective_seconds
from trainwright.cluster.calibration import compute, links, timing
from trainwright.cluster.calibration.calibrate import calibrate
from trainwright.cluster.calibration.compute import measure_storage
from trainwright.cluster.calibration.links import group_sizes, message_sizes
from trainwright.cluster.calibration.ranks import RankPlace, find_rank_place
from trainwright.cluster.network import OPERATIONS
from trainwright.errors import InputError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "host"}
SLURM = {
    "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
    "SLURM_STEP_NODELIST": "node[003-005,009]",
}  # fmt: skip
MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
}  # fmt: skip


@pytest.mark.parametrize(
    ("launcher", "environment", "address", "nodes"),
    [
        ("torchrun", TORCHRUN, "host", 4),
        (None, TORCHRUN, "host", 4),
        ("slurm", SLURM, "node003", 4),
        ("slurm", {**SLURM, "SLURM_STEP_NODELIST": "login7,node1"}, "login7", 4),
        ("mpi", MPI, "127.0.0.1", 1),
    ],
)
def test_launchers_tell_a_process_its_place(launcher, environment, address, nodes):
    """Rank, world, how many on a node, and where rank 0 is."""
    here = find_rank_place(launcher, environment)
    assert (here.rank, here.world, here.local_rank, here.address, here.nodes) == (
        3,
        8,
        3 % here.on_node,
        address,
        nodes,
    )


def test_without_a_launcher_a_process_is_alone():
    """In a batch job's shell too, whose variables say nothing of ranks that nobody started."""
    assert find_rank_place(None, SLURM) == RankPlace()


@pytest.mark.parametrize(
    ("launcher", "environment", "sentence"),
    [
        (
            "torchrn",
            {},
            r"launch: got 'torchrn'; allowed: 'torchrun', .*or None .did you mean 'torchrun'",
        ),
        ("torchrun", {}, "launch torchrun: RANK is None; allowed: a number; start it as torchrun --nproc-per-node N"),
        ("slurm", {**SLURM, "SLURM_LOCALID": "x"}, "SLURM_LOCALID is 'x'; allowed: a number; start it as srun"),
        (
            "torchrun",
            {**TORCHRUN, "WORLD_SIZE": "7"},
            "got rank 3 of 7, 1 of 2 on its node; allowed: as many processes",
        ),
        ("slurm", {**SLURM, "SLURM_LOCALID": "0"}, "allowed: as many processes on every node, numbered node by node"),
        ("mpi", {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "MASTER_ADDR is not set"),
    ],
)
def test_a_launcher_that_is_none(launcher, environment, sentence):
    """Names the variable and how to start the command."""
    with pytest.raises(InputError, match=sentence):
        find_rank_place(launcher, environment)


def test_sizes_of_messages_and_groups():
    """256 B to 64 MB in powers of 4; every power of two of ranks, and every divisor."""
    assert message_sizes(64 * 2**20) == [256 * 4**k for k in range(10)]
    assert message_sizes(256) == [256]
    assert [group_sizes(most) for most in (1, 2, 6, 8)] == [[], [2], [2, 3, 4, 6], [2, 4, 8]]


def test_alone_measures_compute_and_storage(tmp_path):
    """One rank has no links; what it measured is a cluster that a file keeps."""
    cluster = calibrate(RankPlace(), name="here", folder=tmp_path, repeats=2, file_bytes=1 << 20)
    assert (cluster.devices, cluster.tiers, cluster.measured, cluster.verified) == (1, (), (), True)
    assert cluster.device.flops["fp32"] > 1e8
    assert set(cluster.device.efficiency) == {"linear", "conv"}
    assert cluster.device.memory_bandwidth > 1e8
    assert cluster.storage.node_read > 0
    assert cluster.storage.write > 0
    assert set(cluster.errors) == {"compute", "copies", "storage"}
    assert cluster.conditions["torch"] == torch.__version__
    assert not list(tmp_path.iterdir())
    cluster.save(tmp_path / "here.toml")
    assert Cluster.load(tmp_path / "here.toml") == cluster


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: calibrate(RankPlace(), devices="tpu"), "devices: got 'tpu'; allowed: 'cpu', 'cuda'"),
        (lambda: calibrate(RankPlace(), repeats=1), "repeats: got 1; allowed: a whole number >= 2"),
        (
            lambda: calibrate(RankPlace(on_node=999, world=999), devices="cuda"),
            "got cuda with 999 ranks a node; allowed: cpu, or as many ranks as the node has GPUs: ",
        ),
    ],
)
def test_bad_settings_are_refused(call, sentence):
    """Before anything is measured."""
    with pytest.raises(InputError, match=sentence):
        call()


def test_a_folder_that_cannot_be_written(tmp_path):
    """Is named."""
    with pytest.raises(InputError, match=r"storage .*gone: cannot be measured .*; allowed: a folder to write in"):
        measure_storage(tmp_path / "gone", size=1000, repeats=2)


def test_a_clock_that_goes_backwards_is_no_measurement(monkeypatch):
    """The time of each run would be negative."""
    ticks = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: next(ticks))
    with pytest.raises(InputError, match=r"measured times: got -1e-06; allowed: seconds > 0; .* measure again"):
        compute.Timer(torch.device("cpu"), repeats=3).seconds(lambda: None)


PROGRAM = """
import sys
from trainwright.cluster.calibration.calibrate import calibrate
from trainwright.cluster.calibration.ranks import find_rank_place
cluster = calibrate(find_rank_place("torchrun"), name="ranks", repeats=4, largest=1 << 22)
if cluster is not None:
    cluster.save(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("world", "on_node"), [(2, 2), (4, 2)])
def test_ranks_measure_their_links(tmp_path, world, on_node):
    """Every operation at each size of group on each level; no time for sizes of group that were not measured."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path / "ranks.toml")],
            env={
                **environment,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % on_node),
                "LOCAL_WORLD_SIZE": str(on_node),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=250)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, said
    cluster = Cluster.load(tmp_path / "ranks.toml")
    levels = ["node", "network"][: 1 + (world > on_node)]
    assert (cluster.nodes, cluster.devices_per_node) == (world // on_node, on_node)
    assert [(tier.name, tier.worlds) for tier in cluster.tiers] == list(zip(levels, [(2,), (2, 4)], strict=False))
    assert {(each.operation, each.tier) for each in cluster.measured} == {
        (op, name) for op in OPERATIONS for name in levels
    }
    assert all(1 <= tier.links_per_node <= on_node for tier in cluster.tiers)
    assert all(error < 10 for error in cluster.errors.values())
    assert 0 <= cluster.overlap <= 1
    assert set(cluster.runtime_seconds) == {"step", "fsdp", "gpipe", "1f1b"}
    assert len(cluster.pass_seconds) == 5
    assert all(list(times) == sorted(times) for times in cluster.runtime_seconds.values())
    for stride in (1, on_node)[: len(levels)]:
        cost = collective_seconds(cluster, "all_reduce", 65_536, ranks=2, stride=stride)
        assert cost.algorithm == "measured"
        assert 1e-6 < cost.seconds < 10
    if world == 4:
        assert collective_seconds(cluster, "all_reduce", 65_536, ranks=4).algorithm == "measured"
        wider = dataclasses.replace(
            cluster, nodes=3, tiers=(cluster.tiers[0], dataclasses.replace(cluster.tiers[1], devices=6))
        )
        with pytest.raises(InputError, match="got a group of 6 ranks; allowed: 2, 4, at which it was measured"):
            collective_seconds(wider, "all_reduce", 65_536, ranks=6)


@settings(max_examples=50)
@given(st.floats(0, 1e-2), st.floats(0, 1e-1))
def test_what_a_runtime_takes_rises_with_the_root_of_a_pass(fixed, rising):
    """It is found again, whatever it is; times that fall are none that rise, and nothing is below zero."""
    own = [1e-4, 6e-4, 2.5e-3, 1.1e-2, 2.6e-2]
    longer = [fixed + rising * each**0.5 for each in own]
    assert links.fit_rising(own, longer) == pytest.approx(longer, rel=1e-6, abs=1e-12)
    level = links.fit_rising(own, longer[::-1])
    assert level == sorted(level)
    assert min(level) >= 0
