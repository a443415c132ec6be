"""tw.serve.allocate and its command: on devices that are here and on simulated ones, and what they refuse."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from allocation_for_tests import GB, devices, ensemble

from trainwright.cluster import Cluster
from trainwright.cluster import Device as Hardware
from trainwright.ensemble import Ensemble, Member
from trainwright.errors import AllocationError, DeviceError
from trainwright.serve import Deployment, DeploymentPlan, TimeTables, allocate
from trainwright.serve.placement.units import MemberFootprint, MemoryModel

torch = pytest.importorskip("torch")

FAST = Hardware(kind="fast", memory_bytes=4 * GB, flops={"fp32": 1e13}, memory_bandwidth=1e12, host_bandwidth=1e10)
SLOW = Hardware(kind="slow", memory_bytes=4 * GB, flops={"fp32": 1e12}, memory_bandwidth=1e11, host_bandwidth=1e10)
FACTORY = """
from torch import nn

def build(params):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, params["width"]), nn.ReLU(), nn.Linear(params["width"], 3))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return an exported ensemble of three networks, whose factory lies beside it."""
    from safetensors.torch import save

    root = tmp_path_factory.mktemp("allocate")
    (root / "factory_of_allocated.py").write_text(FACTORY)
    sys.path.insert(0, str(root))
    import factory_of_allocated

    members = []
    for trial, width in enumerate((8, 64, 512)):
        torch.manual_seed(trial)
        network = factory_of_allocated.build({"width": width})
        weights = save(network.state_dict())
        place = root / f"member-{trial}"
        place.mkdir()
        count = sum(one.numel() for one in network.parameters())
        told = {
            "schema": 1, "trial": trial, "epoch": 1, "params": {"width": width}, "seed": 0, "output": "classes",
            "data": None, "splits": {}, "parameter_count": count, "weight_bytes": 4 * count,
            "cost": [{"device": "cpu", "threads": 1, "dtype": "float32", "rows": 128, "seconds": 1e-4,
                      "input_shape": [6], "input_dtype": "float32"}],
            "factory": "factory_of_allocated:build", "link": "softmax", "files": {"weights.safetensors": len(weights)},
        }  # fmt: skip
        content = json.dumps(told).encode()
        (place / "member.json").write_bytes(content)
        (place / "weights.safetensors").write_bytes(weights)
        digests = {
            "member.json": Member.digest_of(content),
            "weights.safetensors": Member.digest_of(weights),
        }
        from trainwright.ensemble.library.member import read_member

        members.append(read_member(place, digests, trial=trial))
    Ensemble(members=tuple(members), weights=(0.5, 0.3, 0.2)).save(root / "out")
    yield root / "out"
    sys.path.remove(str(root))


def clusters():
    return [Cluster(1, 1, name="a", device=FAST), Cluster(1, 2, name="b", device=SLOW)]


def tables(*rows):
    """Return times of members on devices of the model "cuda-model", for batches of 1 and 8 rows."""
    return TimeTables(batches=(1, 8), seconds={"cuda-model": np.array(rows, dtype=float)})


class TestSimulated:
    def test_from_traces(self, folder):
        """The plan stays below the bound, and says that nothing of it was run."""
        plan = allocate(Ensemble.load(folder), cluster=clusters(), batches=(1, 8, 64))
        assert plan.simulated
        assert plan.measured == {}
        assert plan.source == "roofline"
        told = plan.expected
        assert 0 < told["value"] <= told["bound"] * (1 + 1e-9)
        assert [device.name for device in plan.devices] == ["a/0", "b/0", "b/1"]
        assert DeploymentPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan

    def test_faster_devices_are_faster(self, folder):
        """By the roofline a device with ten times the figures takes about a tenth of the time, launches apart."""
        from trainwright.serve.placement.roofline import simulated_tables

        found, memory = simulated_tables(Ensemble.load(folder), clusters(), (8, 64, 512))
        ratio = found.seconds["slow"] / found.seconds["fast"]
        assert (ratio > 1).all()
        assert (ratio <= 10 + 1e-9).all()
        assert (np.diff(found.seconds["fast"], axis=1) > 0).all()  # larger batches take longer
        assert (np.diff(found.seconds["slow"][:, -1]) > 0).all()  # and so do wider networks
        assert memory.footprints[2].weight_bytes == 4 * (6 * 512 + 512 + 512 * 3 + 3)
        assert memory.footprints[2].peak_bytes(64) >= 64 * 4 * (6 + 512)

    def test_members_without_weights_are_taken_for_dense(self):
        plan = allocate(ensemble(10, 20), cluster=clusters(), batches=(1, 8))
        assert plan.expected["value"] > 0


class TestGivenTables:
    def test_what_fits_only_in_one_process(self):
        """Two contexts are too many for the device, one is not: members share a process."""
        tight = MemoryModel(
            footprints=(MemberFootprint(weight_bytes=10, row_bytes=0),) * 2, context_bytes={"cuda": 500}, usable=1.0
        )
        plan = allocate(ensemble(10, 20), devices(600), tables=tables([1, 2], [1, 2]), memory=tight, batches=(1, 8))
        assert [unit.name for unit in plan.units] == ["loop(0,1)"]
        assert plan.matrix == ((8,),)
        with pytest.raises(AllocationError, match="needed 520, free 400 of 400"):
            allocate(ensemble(10, 20), devices(400), tables=tables([1, 2], [1, 2]), memory=tight, batches=(1, 8))

    def test_refusals(self):
        with pytest.raises(DeviceError, match="got neither"):
            allocate(ensemble(10))
        with pytest.raises(DeviceError, match="got both"):
            allocate(ensemble(10), "cpu", cluster=clusters())
        with pytest.raises(AllocationError, match="cannot be timed"):
            allocate(ensemble(10), "cpu")


@pytest.mark.slow
class TestMeasured:
    def test_measured_tables_and_run(self, folder):
        """Members are timed in a process of their own, the winner is run; the plan can be deployed."""
        loaded = Ensemble.load(folder)
        plan = allocate(loaded, "cpu:0", batches=(8,))
        assert plan.source == "measured"
        assert 0 <= plan.expected.get("spread", 0.0) < 10
        assert plan.measured["value"] > 0
        assert plan.measured["in_process"] > 0
        with Deployment(loaded, plan) as service:
            x = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
            np.testing.assert_allclose(service.predict(x), loaded.predict(x), atol=1e-6)

    def test_what_does_not_start_is_left_out(self, folder, monkeypatch):
        """A plan whose workers crash is not chosen."""
        monkeypatch.setattr(Deployment, "_runner", "nowhere:nothing")
        assert allocate(Ensemble.load(folder), "cpu:0", batches=(8,)).in_process


class TestCommand:
    def run(self, *arguments):
        command = [sys.executable, "-m", "trainwright", "serve", "allocate", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    def test_simulated(self, folder, tmp_path):
        """It prints the matrix, what is expected; the file it writes is a plan."""
        for number, device in enumerate((FAST, SLOW)):
            cluster = Cluster(1, 1, name=device.kind, device=device)
            cluster.save(tmp_path / f"{number}.toml")
        done = self.run(
            folder, "--cluster", tmp_path / "0.toml", "--cluster", tmp_path / "1.toml", "--out", tmp_path / "plan.json",
            "--json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "simulated devices" in done.stdout
        assert "expected (roofline)" in done.stdout
        told = json.loads(done.stdout.splitlines()[-1])
        assert DeploymentPlan.load(tmp_path / "plan.json").to_json() == {key: told[key] for key in told if key != "out"}

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--devices", "tpu:0"], "got 'tpu:0'"),
            (["--devices", "cpu", "--cluster", "h200"], "got both"),
            (["--cluster", "nowhere"], "cluster: got 'nowhere'"),
        ],
    )
    def test_refusals(self, folder, arguments, why, capsys):
        """In process, as the command line would: one sentence."""
        from trainwright.cli.main import main

        sys_argv, sys.argv = sys.argv, ["trainwright", "serve", "allocate", str(folder), *arguments]
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            sys.argv = sys_argv
        told = capsys.readouterr().err
        assert ended.value.code == 2, told
        assert why in told
        assert "Traceback" not in told

    def test_a_folder_that_is_none(self, tmp_path):
        done = self.run(tmp_path / "none")
        assert done.returncode == 2
        assert "there is no such" in done.stderr
        assert Path(tmp_path).is_dir()
