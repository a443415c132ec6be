"""A lost unit placed anew: where it goes, that the others stay, and what is said if it fits nowhere."""

import pytest
from allocation_for_tests import GB, devices, ensemble, single_units

from trainwright.errors import AllocationError
from trainwright.serve import DeploymentPlan
from trainwright.serve.placement.deployment_plan import Instance, digest_of, fail_over
from trainwright.serve.placement.units import Unit


def plan(*gigabytes, matrix, **changed):
    """Return a plan of three members on devices of these sizes."""
    found = devices(*(size * GB for size in gigabytes))
    told = {"ensemble": digest_of(ensemble(1, 2, 3)), "devices": found, "units": single_units(3), "matrix": matrix}
    return DeploymentPlan(**{**told, **changed})


def lost(found, *places):
    """Return the instances at these (device, unit) places."""
    return [
        Instance(unit=found.units[unit], device=found.devices[device], batch=found.matrix[device][unit], threads=1)
        for device, unit in places
    ]


def anew(found, unit, *places):
    return fail_over(found, Unit(members=(unit,)), lost(found, *places))


def test_the_device_with_least_to_do():
    """The unit goes there with its batch; what runs stays where it is."""
    before = plan(4, 4, 4, matrix=((64, 0, 0), (0, 64, 0), (0, 8, 64)))
    after = anew(before, 0, (0, 0))
    assert [row[0] for row in after.matrix] == [0, 64, 0]
    assert [row[1:] for row in after.matrix] == [row[1:] for row in before.matrix]
    busy = plan(4, 4, 4, matrix=((64, 0, 0), (0, 64, 8), (0, 0, 64)))
    assert [row[0] for row in anew(busy, 0, (0, 0)).matrix] == [0, 0, 64]


def test_not_where_it_was_lost_nor_where_nothing_is_left():
    """A device that kept no instance may be gone; one on which others run is not, nor is one that was idle."""
    before = plan(4, 4, 4, matrix=((64, 64, 0), (0, 0, 64), (0, 0, 0)))
    first = anew(before, 0, (0, 0))
    assert first.matrix[0] == (0, 64, 0)
    assert {row[0] for row in first.matrix[1:]} - {0}
    gone = anew(before, 1, (0, 0), (0, 1))
    assert gone.matrix[0] == (64, 0, 0), "the other lost unit is not this one's to move"
    assert any(row[1] for row in gone.matrix[1:])
    refusal = r"unit 2: no other device is left for it; its workers failed permanently on cuda/0, cuda/1"
    with pytest.raises(AllocationError, match=refusal):
        anew(plan(4, 4, matrix=((8, 8, 0), (0, 0, 8))), 2, (0, 0), (0, 1), (1, 2))


def test_nothing_expected():
    """The batch is that which the unit had; what was expected of the plan before says nothing of this one."""
    before = plan(4, 4, 6, matrix=((16, 0, 0), (0, 16, 0), (0, 0, 16)), expected={"value": 1.0})
    after = anew(before, 0, (0, 0))
    assert after.matrix == ((0, 0, 0), (16, 16, 0), (0, 0, 16))
    assert after.expected == {}


def test_a_plan_file_keeps_what_it_takes(tmp_path):
    before = plan(4, 4, matrix=((64, 64, 0), (0, 0, 64)))
    kept = DeploymentPlan.load(before.save(tmp_path / "plan.json"))
    assert anew(kept, 0, (0, 0)).matrix == anew(before, 0, (0, 0)).matrix
