"""tw.serve.allocate and its command: on devices that are here and on simulated ones, and what they refuse."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from allocation_for_tests import GB, devices, ensemble
from benchmarks.serve.placement_oracles import InjectedCost, brute_force

from trainwright.cluster import Cluster
from trainwright.cluster import Device as Hardware
from trainwright.ensemble import Ensemble, Member
from trainwright.errors import AllocationError, DeviceError, ServeConfigError
from trainwright.serve import P99, DeploymentPlan, Throughput, TimeTables, Unit, allocate, parse_devices
from trainwright.serve.placement.greedy import BoundedGreedy
from trainwright.serve.placement.memory_model import MemberFootprint, MemoryModel
from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.placement_space import PlacementSpace
from trainwright.serve.placement.profile_cost import ProfileCost
from trainwright.serve.placement.real_cost import RealCost
from trainwright.serve.placement.timing import measure_times
from trainwright.serve.placement.units import single_units

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
        """The plan beats worst fit, stays below the bound, fits, and says that nothing of it was run."""
        plan = allocate(Ensemble.load(folder), cluster=clusters(), batches=(1, 8, 64))
        assert plan.simulated
        assert plan.measured == {}
        assert plan.search["times"] == "roofline"
        told = plan.expected
        assert 0 < told["worst_fit"] <= told["batch_only"] <= told["value"] <= told["bound"] * (1 + 1e-9)
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

    def test_real_cost_needs_real_devices(self, folder):
        with pytest.raises(ServeConfigError, match="got 'real' for simulated devices"):
            allocate(Ensemble.load(folder), cluster=clusters(), cost="real")


class TestGivenTables:
    def test_latency_objectives(self):
        """Each is at least as good as worst fit by its own measure."""
        times = tables([0.010, 0.024], [0.020, 0.030])
        for goal in (P99(20), Throughput(slo_ms=100)):
            plan = allocate(
                ensemble(10, 20), devices(GB, GB), objective=goal, tables=times, batches=(1, 8),
                search=BoundedGreedy(kicks=1, max_tried=60),
            )  # fmt: skip
            assert plan.expected["value"] >= plan.expected["worst_fit"]
            assert plan.objective == goal.name
            assert math.copysign(1, plan.expected["value"]) == (-1 if isinstance(goal, P99) else 1)

    def test_a_latency_that_nothing_meets(self):
        """The refusal names the least that is."""
        with pytest.raises(ServeConfigError, match="takes 20 ms"):
            allocate(
                ensemble(10, 20), devices(GB), objective=Throughput(slo_ms=15), tables=tables([0.01, 0.1], [0.02, 0.1]),
                batches=(1, 8),
            )  # fmt: skip

    def test_what_fits_only_in_one_process(self):
        """Two contexts are too many for the device, one is not: members share a process."""
        tight = MemoryModel(
            footprints=(MemberFootprint(weight_bytes=10, row_bytes=0),) * 2, context_bytes={"cuda": 500}, usable=1.0
        )
        plan = allocate(ensemble(10, 20), devices(600), tables=tables([1, 2], [1, 2]), memory=tight, batches=(1, 8))
        assert [unit.name for unit in plan.units] == ["loop(0,1)"]
        assert plan.matrix == ((8,),)
        with pytest.raises(AllocationError, match="needed 510, free 400 of 400"):
            allocate(ensemble(10, 20), devices(400), tables=tables([1, 2], [1, 2]), memory=tight, batches=(1, 8))

    @pytest.mark.parametrize("seed", range(12))
    def test_fused_units_equal_brute_force(self, seed):
        """Fused units are taken where, and only where, every matrix of every choice of columns says so."""
        batches, draws = (1, 8), np.random.default_rng(seed)
        times = draws.uniform(0.5, 3, (3, 1)) + draws.uniform(0.05, 0.3, (3, 1)) * batches
        fused = {
            (unit, "cuda-model"): times[list(unit.members)].sum(axis=0) * draws.uniform(0.4, 1.3)
            for unit in (Unit(members=(0, 1), kind="vmap"), Unit(members=(0, 1, 2), kind="vmap"))
        }
        known = TimeTables(batches=batches, seconds={"cuda-model": times}, fused=fused)
        memory = MemoryModel(
            footprints=(MemberFootprint(weight_bytes=10, row_bytes=1),) * 3, context_bytes={"cuda": 30}, usable=1.0
        )
        found = devices(*draws.integers(100, 250, 2).tolist())
        plan = allocate(ensemble(10, 20, 30), found, tables=known, memory=memory, batches=batches)
        space = PlacementSpace(devices=found, batches=batches, memory=memory)
        cost = ProfileCost(devices=found, tables=known)
        pair, all_three = (unit for unit, _ in fused)
        choices = [single_units(3), (pair, Unit(members=(2,))), (all_three,)]
        best = max(brute_force(units, space, cost)[1] for units in choices)
        assert plan.expected["value"] == pytest.approx(best, rel=1e-9)
        assert plan.expected.get("bound", math.inf) >= best * (1 - 1e-9)

    def test_a_cost_of_ones_own(self):
        """It is all that is asked, and failures everywhere are told."""
        own = InjectedCost(value=lambda one: float(sum(map(sum, one.matrix))))
        plan = allocate(ensemble(10, 20), devices(100 * GB, 100 * GB), cost=own, batches=(1, 8))
        assert plan.matrix == ((8, 8), (8, 8))
        assert plan.search["cost"] == "given"
        with pytest.raises(AllocationError, match="every placement that was tried failed"):
            allocate(ensemble(10), devices(GB), cost=InjectedCost(value=lambda _: -math.inf), batches=(1,))

    def test_refusals(self):
        with pytest.raises(DeviceError, match="got neither"):
            allocate(ensemble(10))
        with pytest.raises(DeviceError, match="got both"):
            allocate(ensemble(10), "cpu", cluster=clusters())
        with pytest.raises(AllocationError, match="cannot be timed"):
            allocate(ensemble(10), "cpu")


@pytest.mark.slow
class TestReal:
    def test_measured_tables_and_run(self, folder):
        """Members are timed in a process of their own, the winner is run; the plan can be deployed."""
        from trainwright.serve import Deployment

        loaded = Ensemble.load(folder)
        plan = allocate(
            loaded, "cpu:0", cost="real", batches=(8,), search=BoundedGreedy(max_steps=1, kicks=1, max_tried=30)
        )
        assert plan.search["times"] == "measured"
        assert plan.measured["value"] > 0
        assert plan.measured["placements"] >= 3
        with Deployment(loaded, plan) as service:
            x = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
            np.testing.assert_allclose(service.predict(x), loaded.predict(x), atol=1e-6)

    def test_what_does_not_start_is_told(self, folder, monkeypatch):
        """A crash of a worker is a measurement: minus infinity, and why."""
        from trainwright.serve import parse_devices
        from trainwright.serve.deployment import Deployment
        from trainwright.serve.placement.placement import Placement
        from trainwright.serve.placement.real_cost import RealCost
        from trainwright.serve.placement.units import single_units

        monkeypatch.setattr(Deployment, "_runner", "nowhere:nothing")
        cost = RealCost(ensemble=Ensemble.load(folder), devices=parse_devices("cpu:0"))
        found = cost.measure([Placement(single_units(3), ((8, 8, 8),))])[0]
        assert found.value == -math.inf
        assert "nowhere" in found.failed

    def test_latencies(self, folder):
        from trainwright.serve import parse_devices
        from trainwright.serve.placement.placement import Placement
        from trainwright.serve.placement.real_cost import RealCost
        from trainwright.serve.placement.units import single_units

        placement = Placement(single_units(3), ((8, 8, 8),))
        cost = RealCost(ensemble=Ensemble.load(folder), devices=parse_devices("cpu:0"), objective=P99(50), seconds=0.2)
        found = cost.measure([placement])[0]
        assert found.failed is None
        assert found.value < 0


@pytest.mark.slow
class TestTogether:
    """Members that sleep do as much at once as there are of them; in one lock, as much as one."""

    @pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two instances need two cores")
    @pytest.mark.parametrize(("locked", "gain"), [(False, 2.0), (True, 1.0)])
    def test_expected_is_measured(self, tmp_path, locked, gain):
        """The gain of a pair is measured, and what is expected of two on a device is what they do when they are run."""
        import served_networks

        lock = {"lock": str(tmp_path / "lock")} if locked else {}
        found = served_networks.ensemble(tmp_path, [{"seconds": 0.04, **lock}] * 2, kind="slow")
        here = parse_devices("cpu:0-1")
        tables, _ = measure_times(found, here, (4, 16))
        (alone, both) = tables.shared["cpu x 2"]
        assert alone == pytest.approx(1.0)
        assert both == pytest.approx(gain, rel=0.25)
        placement = Placement(single_units(2), ((16, 16),))
        expected = ProfileCost(devices=here, tables=tables).measure([placement])[0].value
        done = RealCost(ensemble=found, devices=here).measure([placement])[0].value
        assert expected == pytest.approx(done, rel=0.25)
        lone = dataclasses.replace(tables, shared={})
        plain = ProfileCost(devices=here, tables=lone).measure([placement])[0].value
        assert expected / plain == pytest.approx(gain, rel=0.25)


class TestCommand:
    def run(self, *arguments):
        command = [sys.executable, "-m", "trainwright", "serve", "allocate", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    def test_simulated(self, folder, tmp_path):
        """It prints the matrix, what is expected, the gains; the file it writes is a plan."""
        for number, device in enumerate((FAST, SLOW)):
            cluster = Cluster(1, 1, name=device.kind, device=device)
            cluster.save(tmp_path / f"{number}.toml")
        done = self.run(
            folder, "--cluster", tmp_path / "0.toml", "--cluster", tmp_path / "1.toml", "--out", tmp_path / "plan.json",
            "--json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "simulated devices" in done.stdout
        assert "expected gain:" in done.stdout
        told = json.loads(done.stdout.splitlines()[-1])
        assert DeploymentPlan.load(tmp_path / "plan.json").to_json() == {key: told[key] for key in told if key != "out"}

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--devices", "tpu:0"], "got 'tpu:0'"),
            (["--devices", "cpu", "--cluster", "h200"], "got both"),
            (["--cluster", "h200", "--objective", "speed"], "objective: got 'speed'"),
            (["--cluster", "h200", "--objective", "throughput@0.0000001"], "the fastest single batch"),
            (["--cluster", "h200", "--cost", "guess"], "--cost: got 'guess'"),
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
