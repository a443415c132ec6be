"""Units, plans, and the files that keep them; worst fit by hand."""

import dataclasses
import json

import pytest
from allocation_for_tests import GB, devices, ensemble, member, single_units
from benchmarks.serve.worst_fit import worst_fit

from trainwright.errors import AllocationError
from trainwright.serve import DeploymentPlan
from trainwright.serve.placement.deployment_plan import digest_of
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.units import MemberFootprint, MemoryModel, Unit


def plan(**changed):
    told = {
        "ensemble": digest_of(ensemble(10, 20)),
        "devices": devices(GB, GB),
        "units": single_units(2),
        "matrix": ((8, 0), (4, 16)),
        "expected": {"value": 12.5},
    }
    return DeploymentPlan(**{**told, **changed})


class TestUnits:
    def test_names(self):
        assert Unit(members=(3,)).name == "3"
        assert Unit(members=(0, 2)).name == "loop(0,2)"

    @pytest.mark.parametrize("members", [(), (1, 0), (0, 0), (-1,)])
    def test_refusals(self, members):
        with pytest.raises(AllocationError, match="Unit"):
            Unit(members=members)

    def test_every_member_in_exactly_one_unit(self):
        with pytest.raises(AllocationError, match="hold members 0, 0"):
            plan(units=(Unit(members=(0,)), Unit(members=(0,))))


class TestPlan:
    def test_instances_are_the_entries(self):
        """By device, then unit; zeros are none."""
        found = [(one.device.name, one.unit.name, one.batch, one.threads) for one in plan().instances]
        assert found == [("cuda/0", "0", 8, 1), ("cuda/1", "0", 4, 1), ("cuda/1", "1", 16, 1)]

    @pytest.mark.parametrize(
        ("matrix", "why"),
        [
            (((8, 0), (4, 0)), "unit 1 has no instance"),
            (((8, 1),), "allowed: 2 rows"),
            (((8,), (1,)), "allowed: 2 rows"),
            (((8, -1), (4, 1)), "got -1"),
            (((8, 1.5), (4, 1)), "got 1.5"),
        ],
    )
    def test_refusals(self, matrix, why):
        with pytest.raises(AllocationError, match=why):
            plan(matrix=matrix)

    def test_file_round_trip(self, tmp_path):
        path = plan().save(tmp_path / "plan.json")
        assert DeploymentPlan.load(path) == plan()
        assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]

    def test_damaged_files(self, tmp_path):
        """Nothing is read from a file that was changed, is of another version, or is no plan."""
        path = plan().save(tmp_path / "plan.json")
        told = json.loads(path.read_text())
        for changed, why in (
            ({**told, "matrix": [[8, 0], [4, 32]]}, "it was changed"),
            ({**told, "schema": 3}, "schema: got 3; allowed: 2"),
            ({"schema": 2}, "is no plan"),
            ([], "is no plan"),
        ):
            path.write_text(json.dumps(changed))
            with pytest.raises(AllocationError, match=why):
                DeploymentPlan.load(path)
        path.write_text("{")
        with pytest.raises(AllocationError, match="no JSON"):
            DeploymentPlan.load(path)
        with pytest.raises(AllocationError, match="no such file"):
            DeploymentPlan.load(tmp_path / "none.json")
        with pytest.raises(AllocationError, match="cannot be written"):
            plan().save(tmp_path / "none" / "plan.json")

    def test_check(self):
        """A plan holds for the members and devices that it was made for."""
        plan().check(ensemble(10, 20), devices(GB, GB))
        plan().check(ensemble(10, 20), devices(GB, GB)[::-1])
        plan().check(dataclasses.replace(ensemble(10, 20), weights=(0.9, 0.1)), devices(GB, GB))
        with pytest.raises(AllocationError, match="was made for the ensemble"):
            plan().check(ensemble(10, 20, 30), devices(GB, GB))
        with pytest.raises(AllocationError, match="was made for the devices"):
            plan().check(ensemble(10, 20), devices(GB))
        with pytest.raises(AllocationError, match="are simulated"):
            plan().check(ensemble(10, 20))

    def test_simple(self):
        """One instance of every member, on real devices; on one core they share a process."""
        found = DeploymentPlan.simple(ensemble(10, 20), "cpu:0", batch=4)
        assert (found.matrix, [unit.name for unit in found.units]) == (((4,),), ["loop(0,1)"])
        found.check(ensemble(10, 20))

    def test_simple_has_threads_for_each(self):
        """Processes on a group of cores share its threads; members share processes where there are too few."""
        five = Device(name="cpu:0-4", kind="cpu", cores=tuple(range(5)), threads=5, capacity_bytes=50 * GB)
        found = DeploymentPlan.simple(ensemble(10, 20), [five])
        assert [(one.device.name, one.threads) for one in found.instances] == [("cpu:0-4", 3), ("cpu:0-4", 2)]
        crowded = DeploymentPlan.simple(ensemble(*range(1, 8)), [five])
        assert [one.threads for one in crowded.instances] == [1] * 5
        assert sorted(len(unit.members) for unit in crowded.units) == [1, 1, 1, 2, 2]


class TestWorstFit:
    def test_the_largest_first_onto_the_emptiest(self):
        memory = MemoryModel(
            footprints=tuple(MemberFootprint(weight_bytes=size, row_bytes=0) for size in (10, 50, 30, 20)),
            context_bytes={"cuda": 0},
            usable=1.0,
        )
        found = worst_fit(devices(60, 70), single_units(4), memory, batch=8)
        # 50 onto the 70 (20 left), 30 onto the 60 (30 left), 20 onto the 60 (10 left), 10 onto the 70.
        assert found == ((0, 0, 8, 8), (8, 8, 0, 0))

    def test_accelerators_first(self):
        memory = MemoryModel(
            footprints=(MemberFootprint(weight_bytes=10, row_bytes=1),) * 3,
            context_bytes={"cuda": 5, "cpu": 0},
            usable=1.0,
        )
        both = (Device(name="cpu:0", kind="cpu", cores=(0,), capacity_bytes=1000), *devices(40))
        assert worst_fit(both, single_units(3), memory, batch=1) == ((0, 0, 1), (1, 1, 0))

    def test_too_large(self):
        """The sentence has what is needed and free by device, and what would do."""
        memory = MemoryModel(footprints=(MemberFootprint(weight_bytes=90, row_bytes=1),), context_bytes={"cuda": 10})
        with pytest.raises(AllocationError, match=r"cuda/1: needed 104, free 95 of 100") as caught:
            worst_fit(devices(50, 100), single_units(1), memory, batch=4)
        assert "9 bytes more on cuda/1 would do" in str(caught.value)

    def test_a_member_of_unknown_size(self):
        unknown = dataclasses.replace(member(0), weight_bytes=None)
        with pytest.raises(AllocationError, match="its bytes are not known"):
            MemberFootprint.assumed(unknown)
