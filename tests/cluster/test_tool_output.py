"""Clusters from what nvidia-smi, Slurm and nccl-tests print: known networks come back, other machines are refused."""

import pytest

from trainwright.cli.plan_fit import import_network
from trainwright.cluster import Cluster
from trainwright.cluster.calibration.tool_output import adapt_cluster
from trainwright.errors import InputError

H100 = "NVIDIA H100 80GB HBM3"


def topology(links, extra="\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"):
    """Write a matrix as `nvidia-smi topo -m` does: links[i][j] joins devices i and j."""
    head = "\t".join(f"GPU{at}" for at in range(len(links)))
    rows = [f"GPU{at}\t" + "\t".join(" X " if link == "X" else link for link in row) for at, row in enumerate(links)]
    return (
        f"\t{head}{extra}\n" + "".join(f"{row}\tPIX\t0-47\t0\t\tN/A\n" for row in rows) + "\nLegend:\n\n  X    = Self\n"
    )


def matrix(devices, group, near="NV4", far="SYS"):
    pairs = [[near if one // group == other // group else far for other in range(devices)] for one in range(devices)]
    return [["X" if one == other else link for other, link in enumerate(row)] for one, row in enumerate(pairs)]


def nccl_table(operation, ranks, hosts, seconds_of, *, kind=H100, named=True):
    """Write a table as nccl-tests does, of times that a function of the bytes gives."""
    per_host = ranks // hosts
    lines = ["# nThread 1 nGpus 1 minBytes 1024 maxBytes 67108864 step: 4(factor) warmup iters: 5 iters: 20"]
    lines += [f"# Collective test starting: {operation}_perf"] if named else []
    lines += ["#", "# Using devices"]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid   {1800 + rank} on   host-{rank // per_host} "
        f"device  {rank % per_host} [0x8d] {kind}"
        for rank in range(ranks)
    ]
    columns = "     time   algbw   busbw #wrong"
    lines += [f"#       size         count      type   redop    root{columns}{columns}"]
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "sendrecv": 1.0}.get(operation, (ranks - 1) / ranks)
    for size in [4**power for power in range(5, 14)]:
        seconds = seconds_of(size)
        rate = size / seconds / 1e9
        times = f"{seconds * 1e6:9.2f} {rate:7.2f} {factor * rate:7.2f}      0"
        lines.append(f"{size:12d} {size // 4:12d}     float     sum      -1 {times} {times}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 100.0"])


def ring(ranks, alpha, bandwidth, *, steps=2):
    return lambda size: steps * (ranks - 1) * (alpha + size / ranks / bandwidth)


class TestNcclTests:
    def test_latency_and_bandwidth_come_back(self):
        base = Cluster.preset("dgx-h100", nodes=4)
        texts = {
            "inside.txt": nccl_table("all_reduce", 8, 1, ring(8, 5e-6, 300e9)),
            "outside.txt": nccl_table("all_gather", 4, 4, ring(4, 20e-6, 25e9, steps=1)),
        }
        found = adapt_cluster(base, texts)
        assert found.tiers[0].alpha == pytest.approx(5e-6, rel=0.02)
        assert found.tiers[0].bandwidth == pytest.approx(300e9, rel=0.02)
        assert found.tiers[1].alpha == pytest.approx(20e-6, rel=0.02)
        assert found.tiers[1].bandwidth == pytest.approx(25e9, rel=0.02)
        assert {(each.operation, each.ranks, each.on_node) for each in found.measured} == {
            ("all_reduce", 8, 8),
            ("all_gather", 4, 1),
        }
        assert found.errors["nvlink"] < 0.02
        assert found.conditions["network"] == "inside.txt, outside.txt"

    def test_whole_nodes_say_what_they_reach(self):
        """Eight links of 50 GB/s carry 320 GB/s together."""
        base = Cluster.preset("dgx-h100", nodes=2)
        text = nccl_table("all_reduce", 16, 2, lambda size: 2 * 15 / 16 * size / 320e9)
        found = adapt_cluster(base, {"both.txt": text})
        assert found.tiers[1].reached == pytest.approx(0.8, rel=0.05)
        assert found.tiers[1].bandwidth == base.tiers[1].bandwidth
        assert found.measured[-1].at(4**13) == pytest.approx(2 * 15 / 16 * 4**13 / 320e9, rel=0.01)

    def test_an_older_version_is_named_by_its_file(self):
        text = nccl_table("sendrecv", 2, 1, lambda size: 1e-5 + size / 1e11, named=False)
        base = Cluster.preset("dgx-h100")
        assert adapt_cluster(base, {"runs/sendrecv-2.log": text}).measured[-1].operation == "send"
        with pytest.raises(InputError, match=r"a\.log: does not say which operation it timed; allowed: name the file"):
            adapt_cluster(base, {"a.log": text})

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (nccl_table("all_reduce", 8, 1, ring(8, 1e-6, 1e11), kind="NVIDIA A100-SXM4-40GB"), "another machine"),
            (nccl_table("all_reduce", 16, 1, ring(16, 1e-6, 1e11)), "has 16 ranks, dgx-h100 8 devices"),
            (nccl_table("reduce", 8, 1, ring(8, 1e-6, 1e11)), "does not say which operation"),
            ("# busbw\n#  Rank  0 on a device 0 [0x1] x\n", "another machine|has 1 ranks"),
            ("nothing of the kind", "is no output that is known"),
        ],
    )
    def test_what_is_no_table_of_this_machine(self, text, said):
        with pytest.raises(InputError, match=said):
            adapt_cluster(Cluster.preset("dgx-h100"), {"x.txt": text})


class TestNvidiaSmi:
    def test_all_joined_is_one_level(self):
        base = Cluster.preset("dgx-h100", nodes=2)
        assert adapt_cluster(base, {"topo.txt": topology(matrix(8, 8, "NV18"))}) == base

    def test_pairs_of_nvlink_are_a_level_within_the_node(self):
        found = adapt_cluster(Cluster.preset("dgx-h100", nodes=2), {"topo.txt": topology(matrix(8, 2))})
        assert [(tier.name, tier.devices) for tier in found.tiers] == [("nvlink", 2), ("pcie", 8), ("network", 16)]
        assert found.tiers[1].bandwidth == 64e9

    def test_without_nvlink_pcie_joins_a_node(self):
        found = adapt_cluster(Cluster.preset("dgx-h100"), {"topo.txt": topology(matrix(8, 1, far="PHB"))})
        assert [tier.name for tier in found.tiers] == ["pcie"]

    def test_a_file_of_another_machine_is_refused(self):
        with pytest.raises(InputError, match="has 4 GPUs, a node of dgx-h100 8; it is a file of another machine"):
            adapt_cluster(Cluster.preset("dgx-h100"), {"topo.txt": topology(matrix(4, 4))})
        uneven = matrix(8, 2)
        for one, other in ((0, 2), (2, 0)):
            uneven[one][other] = "NV1"
        with pytest.raises(InputError, match=r"groups of \[2, 4\] GPUs"):
            adapt_cluster(Cluster.preset("dgx-h100"), {"topo.txt": topology(uneven)})


class TestSlurm:
    TREE = """
    # a comment
    SwitchName=leaf0 Nodes=n[00-07]  # LinkSpeed is not read
    SwitchName=leaf1 Nodes=n[08-15]
    SwitchName=leaf2 Nodes=n[16-22],m1
    switchname=spine Switches=leaf[0-2]
    """

    def test_leaves_are_a_level(self):
        base = Cluster.preset("dgx-h100", nodes=2)
        found = adapt_cluster(base, {"topology.conf": self.TREE})
        assert found.nodes == 24
        assert [(tier.name, tier.devices) for tier in found.tiers] == [
            ("nvlink", 8),
            ("switch-1", 64),
            ("network", 192),
        ]

    def test_times_count_for_the_level_that_they_span(self):
        texts = {
            "topology.conf": self.TREE,
            "leaf.txt": nccl_table("all_reduce", 8, 8, ring(8, 10e-6, 40e9)),
            "far.txt": nccl_table("all_reduce", 16, 16, ring(16, 10e-6, 20e9)),
        }
        found = adapt_cluster(Cluster.preset("dgx-h100", nodes=2), texts)
        assert found.tiers[1].bandwidth == pytest.approx(40e9, rel=0.02)
        assert found.tiers[2].bandwidth == pytest.approx(20e9, rel=0.02)

    def test_blocks(self):
        text = "BlockName=b0 Nodes=n[0-17]\nBlockName=b1 Nodes=n[18-35]\n"
        found = adapt_cluster(Cluster.preset("dgx-h100", nodes=2), {"topology.conf": text})
        assert (found.nodes, found.tiers[1].devices) == (36, 144)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("SwitchName=a Switches=b", "switch a has unknown switches"),
            ("SwitchName=a LinkSpeed=3", "switch a has no nodes and no switches"),
        ],
    )
    def test_bad_trees(self, text, said):
        with pytest.raises(InputError, match=said):
            adapt_cluster(Cluster.preset("dgx-h100"), {"topology.conf": text})


def test_the_command_writes_a_cluster_file(tmp_path):
    table = tmp_path / "all_reduce.txt"
    table.write_text(nccl_table("all_reduce", 8, 1, ring(8, 5e-6, 300e9)))
    out = tmp_path / "mine.toml"
    content = import_network([table], cluster="dgx-h100", nodes=2, out=out).content
    assert content["tiers"][0]["bandwidth"] == pytest.approx(300e9, rel=0.02)
    loaded = Cluster.load(out)
    assert loaded.measured[-1].ranks == 8
    with pytest.raises(InputError, match="there is no such file"):
        import_network([tmp_path / "none.txt"], cluster="dgx-h100", out=out)
