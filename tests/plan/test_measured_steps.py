"""What a measured profile and a calibrated cluster say of a step: micro-batches, torch's own code, what hides."""

from dataclasses import replace

import pytest
from oracle_cases import make_cluster, make_transformer

from trainwright.cluster import collective_seconds
from trainwright.plan import Degrees, Oracle

LAYERS = 4


def measured(*, batch=16, fixed=0.0, framework=0.0):
    """Return a chain whose layers take `fixed` seconds and 1 ms a sample forward, twice that backward."""
    profile = make_transformer(layers=LAYERS, vocabulary=0)
    (block,) = profile.blocks
    sizes = (1, 4)

    def times(samples):
        return fixed + 1e-3 * samples

    layers = tuple(
        replace(
            layer,
            forward_seconds=times(batch),
            backward_seconds=2 * times(batch),
            smaller_forward_seconds=tuple(map(times, sizes)),
            smaller_backward_seconds=tuple(2 * times(size) for size in sizes),
        )
        for layer in block.layers
    )
    return replace(
        profile,
        batch=batch,
        blocks=(replace(block, layers=layers),),
        smaller_batches=sizes,
        framework_seconds=framework,
        smaller_framework_seconds=(framework, framework),
    ), 3 * LAYERS * len(layers)


def estimate(profile, cluster=None, *, degrees=None, **settings):
    cluster = cluster or make_cluster(1, 2)
    return Oracle(cluster).estimate(profile, batch=16, degrees=degrees or Degrees(), optimizer="sgd", **settings)


@pytest.mark.parametrize("micro", [1, 2, 4, 8, 16])
def test_micro_batches_take_what_such_batches_took(micro):
    """Seconds are affine in the samples of a pass, and so is what lies between the sizes that were measured."""
    profile, passes = measured(fixed=5e-3)
    plan = estimate(profile, micro=micro)
    assert plan.breakdown.compute == pytest.approx(16 / micro * passes * (5e-3 + 1e-3 * micro))


def test_profiles_of_one_batch_scale_in_proportion():
    """Nothing else is known of them."""
    profile, passes = measured(fixed=16e-3)
    layers = tuple(
        replace(each, smaller_forward_seconds=(), smaller_backward_seconds=()) for each in profile.blocks[0].layers
    )
    profile = replace(
        profile, blocks=(replace(profile.blocks[0], layers=layers),), smaller_batches=(), smaller_framework_seconds=()
    )
    assert estimate(profile, micro=2).breakdown.compute == pytest.approx(passes * 32e-3)
    assert estimate(replace(profile, framework_seconds=1.0), micro=2).breakdown.framework == pytest.approx(8.0)


def test_every_micro_batch_has_its_framework():
    """Of a pipeline's stage the share of its layers, in its bubbles too; and the runtime of a pipeline."""
    profile, _ = measured(framework=0.1)
    assert estimate(profile).breakdown.framework == pytest.approx(0.1)
    assert estimate(profile, micro=4).breakdown.framework == pytest.approx(0.4)
    two, cluster = (
        Degrees(pipeline=2),
        make_cluster(1, 2, pass_seconds=(1e-3,), runtime_seconds={"gpipe": (0.01,), "1f1b": (7.0,), "step": (9.0,)}),
    )
    assert estimate(profile, degrees=two, micro=4).breakdown.framework == pytest.approx(5 * 0.05)
    assert estimate(profile, cluster, degrees=two, micro=4, schedule="gpipe").breakdown.framework == pytest.approx(
        5 * 0.06
    )


def test_a_schedule_slows_its_stages_down():
    """As was measured for what a micro-batch takes in the slowest stage, framework and all, or between; not beyond."""
    profile, _ = measured(framework=0.1)
    two = Degrees(pipeline=2)
    plain = estimate(profile, make_cluster(1, 2), degrees=two, micro=4).breakdown
    own = plain.compute / 4 + 0.05
    for stages, expected in (
        ((own,), 7.0), ((own / 2, 3 * own / 2), 4.0), ((2 * own, 3 * own), 1.0), ((own / 3, own / 2), 7.0)
    ):  # fmt: skip
        times = {"gpipe": (9.0,) * len(stages), "1f1b": (1.0, 7.0)[-len(stages) :]}
        cluster = make_cluster(1, 2, pass_seconds=stages, runtime_seconds=times)
        longer = estimate(profile, cluster, degrees=two, micro=4).breakdown.framework - plain.framework
        assert longer == pytest.approx(5 * expected)


def test_the_slowest_stage_waits_less_for_others():
    """By what they are done before it, and no less than where there is nothing to compute; but as long for replicas."""
    profile, _ = measured()
    (block,) = profile.blocks
    one = 3 * 4e-3 * len(block.layers)  # seconds of a layer for a micro-batch

    def longer(scale, runtime="gpipe", replicas=1):
        """Return what an iteration takes longer in two stages of a layer, the second of which takes so much longer."""
        slow = tuple(
            replace(
                layer,
                forward_seconds=scale * layer.forward_seconds,
                backward_seconds=scale * layer.backward_seconds,
                smaller_forward_seconds=tuple(scale * each for each in layer.smaller_forward_seconds),
                smaller_backward_seconds=tuple(scale * each for each in layer.smaller_backward_seconds),
            )
            for layer in block.layers
        )
        uneven = replace(profile, blocks=(replace(block, count=1), replace(block, count=1, layers=slow)))
        found = []
        for runtimes in ({}, {runtime: (0.2, 1.0)}):
            cluster = make_cluster(1, 2 * replicas, pass_seconds=(1e-6, 1e-3), runtime_seconds=runtimes)
            degrees = Degrees(data=replicas, pipeline=2)
            plan = estimate(uneven, cluster, degrees=degrees, micro=4, schedule="gpipe")
            found.append(plan.breakdown.framework)
            assert plan.stages == (1, 1)
        return found[1] - found[0]

    assert longer(1.0) == pytest.approx(5 * 1.0)
    for scale in (1.2, 1.4):
        assert longer(scale) == pytest.approx(5 * (1.0 - (scale - 1) * one))
    assert longer(1 + 2 / one) == pytest.approx(5 * 0.2)
    assert longer(1.4, "step", replicas=2) == pytest.approx(1.0)


def test_an_iteration_on_several_devices_has_a_runtime_of_its_own():
    """Once, for the passes of all its micro-batches together; one device has none."""
    profile, _ = measured()
    own = estimate(profile, degrees=Degrees(data=2), micro=4).breakdown.compute
    cluster = make_cluster(
        1, 2, pass_seconds=(own / 2, 3 * own / 2), runtime_seconds={"step": (0.01, 0.03), "gpipe": (7.0, 7.0)}
    )
    for degrees, seconds in ((Degrees(), 0.0), (Degrees(data=2), 0.02)):
        assert estimate(profile, cluster, degrees=degrees, micro=4).breakdown.framework == pytest.approx(seconds)


@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_fsdp_has_a_runtime_of_its_own(overlap):
    """For every micro-batch; and where it was measured none of its exchanges is hidden."""
    profile, _ = measured()
    runtimes = {"pass_seconds": (1.0,), "runtime_seconds": {"fsdp": (7e-3,), "step": (5e-3,)}}
    cluster = make_cluster(1, 2, overlap=overlap, **runtimes)
    plan = estimate(profile, cluster, degrees=Degrees(data=2), zero=3, micro=4)
    moved = sum(
        each.count * collective_seconds(cluster, each.operation, each.bytes, ranks=2).seconds
        for each in plan.collectives
    )
    assert plan.breakdown.communication == pytest.approx(moved)
    assert plan.breakdown.framework == pytest.approx(2 * 7e-3)
    assert estimate(profile, cluster, degrees=Degrees(data=2)).breakdown.framework == pytest.approx(5e-3)


def test_gradients_of_micro_batches_are_added_up():
    """Of all but the first: 12 bytes a parameter, of those that a device keeps."""
    profile, _ = measured()
    cluster = make_cluster(1, 2)
    second = 12 * profile.parameters / (0.8 * cluster.device.memory_bandwidth)
    whole, parts = (estimate(profile, micro=micro).breakdown.update for micro in (16, 4))
    assert parts - whole == pytest.approx(3 * second)
    whole, parts = (
        estimate(profile, degrees=Degrees(data=2), zero=2, micro=micro).breakdown.update for micro in (8, 2)
    )
    assert parts - whole == pytest.approx(3 * second / 2)


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_without_overlap_all_exchanges_are_waited_for(zero):
    """The seconds of every collective are exposed; with it no more."""
    profile, _ = measured()
    alone, beside = (
        estimate(profile, make_cluster(2, 1, overlap=overlap), degrees=Degrees(data=2), zero=zero)
        for overlap in (0.0, 1.0)
    )
    fabric = make_cluster(2, 1)
    every = sum(
        each.count * collective_seconds(fabric, each.operation, each.bytes, ranks=2).seconds
        for each in alone.collectives
    )
    assert alone.breakdown.communication == pytest.approx(every, rel=1e-6)
    assert beside.breakdown.communication <= alone.breakdown.communication
    assert replace(alone.breakdown, communication=0.0) == replace(beside.breakdown, communication=0.0)
