"""Plans as iterations: the oracle's seconds come out again, and its exchanges with their groups."""

from dataclasses import replace

import pytest
from benchmarks.plan.fit_iteration import Machine, iteration_terms
from benchmarks.plan.fit_plan import iteration_of

from trainwright.cluster import Cluster, Device, NetworkLevel
from trainwright.errors import InputError
from trainwright.model.layer import Block, Layer
from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Oracle

CLUSTER = Cluster(
    8,
    4,
    device=Device(kind="any", flops={"fp32": 1e13}, memory_bandwidth=1e12),
    tiers=(
        NetworkLevel(name="node", devices=4, alpha=1e-5, bandwidth=50e9),
        NetworkLevel(name="network", devices=32, alpha=4e-5, bandwidth=10e9),
    ),
)


def layer(name, *, kind="conv", size=16, seconds=1e-4, **sizes):
    sizes = {"input_size": (size, size), "output_size": (size, size), "kernel": (3, 3), "padding": (1, 1)} | sizes
    return Layer(
        name=name,
        kind=kind,
        input_elements=8 * size * size,
        output_elements=8 * size * size,
        weight_elements=576,
        forward_seconds=seconds,
        backward_seconds=2 * seconds,
        channels=8,
        filters=8,
        stride=(1, 1),
        **sizes,
    )


PROFILE = Profile(
    name="small",
    batch=1,
    blocks=(
        Block(name="convolutions", layers=(layer("first"), layer("second", seconds=2e-4)), count=3),
        Block(name="end", layers=(layer("end", kind="linear", input_size=(), output_size=(), kernel=(), padding=()),)),
    ),
)
ORACLE = Oracle(CLUSTER)


@pytest.mark.parametrize(
    "degrees", [Degrees(data=8), Degrees(filter=4, data=2), Degrees(spatial=4, data=2), Degrees(spatial=4)]
)
def test_the_oracle_comes_out_again(degrees):
    """On the oracle's own cluster, nothing hidden, compute and exchanges are those of the plan's breakdown."""
    plan = ORACLE.estimate(PROFILE, batch=64, degrees=degrees)
    found = iteration_terms(Machine(cluster=CLUSTER), [iteration_of(PROFILE, plan)])
    assert float(found.compute[0]) == pytest.approx(plan.breakdown.compute)
    inside = [each for each in plan.collectives if not each.overlaps]
    assert float(found.exchange[0]) >= plan.breakdown.communication * (1 - 1e-9)  # gradients may hide in a plan
    assert bool(inside) == (degrees.devices > degrees.data)


def test_groups_and_transports():
    """Filter exchanges are among neighbours and staged if asked; gradients among every fourth rank, never staged."""
    plan = ORACLE.estimate(PROFILE, batch=64, degrees=Degrees(filter=4, data=2))
    run = iteration_of(PROFILE, plan, staged=("filter",), sample_bytes=10.0, handed_on=True)
    near = [each for each in run.exchanges if each.staged]
    far = [each for each in run.exchanges if not each.staged]
    assert {(each.ranks, each.stride) for each in near} == {(4, 1)}
    assert {(each.ranks, each.stride, each.operation) for each in far} == {(2, 4, "all_reduce")}
    assert (run.devices, run.samples, run.parts, run.sample_bytes, run.handed_on) == (8, 32, 4, 10.0, True)


def test_work_is_sorted_by_what_is_divided():
    """Repeated blocks count as often as they run; a layer without places stays whole under a spatial strategy."""
    plan = ORACLE.estimate(PROFILE, batch=64, degrees=Degrees(spatial=4, data=2))
    run = iteration_of(PROFILE, plan)
    assert run.divided_seconds == pytest.approx({"conv": 3 * 3 * 3e-4})
    assert run.whole_seconds == pytest.approx(3e-4)


def test_what_cannot_be_described():
    """Layers without seconds and several micro-batches are refused."""
    untimed = layer("end", kind="linear", input_size=(), output_size=(), kernel=(), padding=())
    untimed = replace(untimed, forward_seconds=None)
    plan = ORACLE.estimate(PROFILE, batch=64, degrees=Degrees(data=8))
    blocks = (PROFILE.blocks[0], Block(name="end", layers=(untimed,)))
    with pytest.raises(InputError, match="'end' has no seconds"):
        iteration_of(replace(PROFILE, blocks=blocks), plan)
    with pytest.raises(InputError, match="4 micro-batches"):
        iteration_of(PROFILE, ORACLE.estimate(PROFILE, batch=64, degrees=Degrees(data=8), micro=2))
