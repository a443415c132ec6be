"""The oracle: what adds up, what follows from what, and what it refuses."""

import math
from dataclasses import fields, replace

import pytest
from oracle_cases import DEVICE, make_cluster, make_convolutions, make_transformer

from trainwright.cluster import Cluster, NetworkLevel
from trainwright.errors import InputError
from trainwright.plan import Degrees, Oracle


def test_parts_add_up():
    """Every plan's breakdown sums to its seconds, no part is negative or infinite, and bytes are whole numbers."""
    for profile in (make_transformer(), make_convolutions()):
        for plan in Oracle(make_cluster()).rank(profile, batch=16):
            parts = [getattr(plan.breakdown, part.name) for part in fields(plan.breakdown)]
            assert math.fsum(parts) == plan.seconds_per_iteration
            assert all(part >= 0 and math.isfinite(part) for part in parts)
            assert isinstance(plan.peak_bytes, int)
            assert plan.reserved_bytes >= plan.peak_bytes > plan.state_bytes
            assert plan.devices <= 16
            assert all(isinstance(each.bytes, int) and each.count > 0 for each in plan.collectives)


def test_one_device_has_no_strategy():
    """On one device there is only serial, with nothing to exchange."""
    (plan,) = Oracle(make_cluster(1, 1)).rank(make_transformer(), batch=4)
    assert plan.strategy == "serial"
    assert plan.collectives == ()
    assert plan.breakdown.communication == plan.breakdown.bubble == 0


def test_serial_is_the_sum_of_its_layers():
    """Seconds of a serial plan are the roofline of each layer, written down once more by hand."""
    profile = make_convolutions()
    cluster = make_cluster(1, 1)
    plan = Oracle(cluster).estimate(profile, batch=4, degrees=Degrees(), optimizer="sgd")
    seconds = 0.0
    for layer in profile.layers:
        reached = {"conv": 0.45, "linear": 0.6}[layer.kind] * 15e12
        for flops, traffic, passes in (
            (layer.forward_flops, layer.forward_bytes, 1),
            (layer.backward_flops, layer.backward_bytes, 2),
        ):
            weights = passes * 4 * layer.weight_elements
            moved = 4 * max(0, traffic - weights) + weights
            arithmetic, traffic_seconds = 4 * flops / reached, moved / (0.8 * 900e9)
            # A product's operands come and go before and after its arithmetic; elsewhere the longer one counts.
            both = sum if layer.kind == "linear" else max
            seconds += both((arithmetic, traffic_seconds)) + passes * 5e-6
    assert plan.breakdown.compute == pytest.approx(seconds)
    assert plan.breakdown.update == pytest.approx(12 * profile.parameters / (0.8 * 900e9))


def test_measured_layers_count():
    """A layer with measured seconds takes them, per sample of the batch that was measured."""
    profile = make_convolutions()
    layers = tuple(
        replace(block, layers=tuple(replace(each, forward_seconds=1.0, backward_seconds=2.0) for each in block.layers))
        for block in profile.blocks
    )
    plan = Oracle(make_cluster(1, 1)).estimate(replace(profile, blocks=layers, batch=2), batch=8, degrees=Degrees())
    assert plan.breakdown.compute == pytest.approx(4 * 3.0 * len(layers))


def changed(**changes):
    tiers = tuple(replace(tier, **changes.get("tier", {})) for tier in make_cluster().tiers)
    return make_cluster(device=replace(DEVICE, **changes.get("device", {})), tiers=tiers)


@pytest.mark.parametrize(
    ("changes", "slower"),
    [
        ({"tier": {"alpha": 1e-3}}, True),
        ({"tier": {"bandwidth": 1e9}}, True),
        ({"tier": {"bandwidth": 1e12}}, False),
        ({"device": {"memory_bandwidth": 1e11}}, True),
        ({"device": {"flops": {"fp32": 1e14}}}, False),
        ({"device": {"launch_seconds": 1e-4}}, True),
    ],
)
def test_time_follows_the_hardware(changes, slower):
    """No strategy is faster on worse hardware, and none slower on better; some are not the same."""
    for profile in (make_transformer(), make_convolutions()):
        before = {
            plan.strategy: plan.seconds_per_iteration for plan in Oracle(changed()).rank(profile, batch=4, devices=4)
        }
        after = {
            plan.strategy: plan.seconds_per_iteration
            for plan in Oracle(changed(**changes)).rank(profile, batch=4, devices=4)
        }
        ratios = [after[name] / before[name] for name in before]
        assert all(ratio >= 1 - 1e-9 for ratio in ratios) if slower else all(ratio <= 1 + 1e-9 for ratio in ratios)
        assert any(abs(ratio - 1) > 1e-3 for ratio in ratios)


def test_memory_falls_with_devices():
    """At a fixed batch more data ranks never need more memory each, and FSDP never more than replicas."""
    profile = make_transformer(layers=12)
    for zero in range(4):
        peaks = [
            Oracle(make_cluster())
            .estimate(profile, batch=16, degrees=Degrees(data=data), zero=zero if data > 1 else 0)
            .peak_bytes
            for data in (1, 2, 4, 8, 16)
        ]
        assert peaks == sorted(peaks, reverse=True)
    plans = [
        Oracle(make_cluster()).estimate(profile, batch=16, degrees=Degrees(data=8), zero=zero) for zero in range(4)
    ]
    assert plans[3].peak_bytes < plans[2].peak_bytes < plans[0].peak_bytes


def test_collectives_of_data_parallelism():
    """Replicas sum all gradients once; FSDP gathers every weight twice and scatters every gradient once."""
    profile = make_transformer()
    oracle = Oracle(make_cluster())
    total = 4 * profile.parameters
    data = oracle.estimate(profile, batch=8, degrees=Degrees(data=8)).collectives
    assert sum(each.bytes * each.count for each in data) == pytest.approx(total, rel=1e-6)
    assert {each.operation for each in data} == {"all_reduce"}
    fsdp = oracle.estimate(profile, batch=8, degrees=Degrees(data=8), zero=3).collectives
    moved = {
        name: sum(each.bytes * each.count for each in fsdp if each.operation == name)
        for name in ("all_gather", "reduce_scatter")
    }
    assert moved == {"all_gather": 2 * total, "reduce_scatter": total}


def test_collectives_of_tensor_parallelism():
    """Two all-reduces forward and two backward a block, of batch * sequence * hidden elements (arXiv 1909.08053)."""
    profile = make_transformer(layers=6)
    oracle = Oracle(make_cluster())
    plan = oracle.estimate(profile, batch=8, degrees=Degrees(tensor=4))
    inside = [each for each in plan.collectives if each.layer.startswith(("attention", "feedforward"))]
    assert sum(each.count for each in inside) == 4 * 6
    assert {each.bytes for each in inside} == {8 * 128 * 256 * 4}
    divided = oracle.estimate(profile, batch=8, degrees=Degrees(tensor=4), sequence=True)
    inside = [each for each in divided.collectives if each.layer.startswith(("attention", "feedforward"))]
    assert {each.operation for each in inside} == {"reduce_scatter", "all_gather"}
    assert sum(each.count for each in inside) == 8 * 6


def test_pipelines():
    """1F1B waits p - 1 slots of its slowest stage, interleaved v times less; GPipe keeps all micro-batches."""
    profile, oracle = make_transformer(layers=16), Oracle(make_cluster())
    made = {
        schedule: oracle.estimate(
            profile, batch=16, degrees=Degrees(pipeline=4), micro=1, schedule=schedule, chunks=chunks
        )
        for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2))
    }
    one = made["1f1b"]
    assert one.breakdown.bubble == pytest.approx(one.breakdown.compute * 3 / 16)
    woven = made["interleaved"]
    assert woven.breakdown.bubble == pytest.approx(woven.breakdown.compute * 3 / 32)
    assert made["gpipe"].activation_bytes > 3 * one.activation_bytes
    assert sum(one.stages) == 18
    assert len(one.stages) == 4
    assert len(woven.stages) == 8
    sends = [each for each in one.collectives if each.operation == "send"]
    assert sum(each.count for each in sends) == 2 * 16


def test_scale():
    """Ten times slower in everything is ten times the time."""
    slow = Cluster(
        4,
        4,
        device=replace(DEVICE, flops={"fp32": 15e11}, memory_bandwidth=900e8, launch_seconds=5e-5),
        tiers=tuple(
            NetworkLevel(
                name=tier.name,
                devices=tier.devices,
                alpha=tier.alpha * 10,
                bandwidth=tier.bandwidth / 10,
                links_per_node=tier.links_per_node,
            )
            for tier in make_cluster().tiers
        ),
    )
    fast = {
        plan.strategy: plan.seconds_per_iteration for plan in Oracle(make_cluster()).rank(make_transformer(), batch=16)
    }
    for plan in Oracle(slow).rank(make_transformer(), batch=16, max_memory_bytes=16e9):
        assert plan.seconds_per_iteration == pytest.approx(10 * fast[plan.strategy])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": 0}, "batch: got 0"),
        ({"devices": 17}, "devices: got 17; allowed: 1 to 16"),
        ({"devices": 0}, "devices: got 0"),
        ({"precision": "fp8"}, "amp-bf16"),
        ({"optimizer": "adamm"}, "did you mean 'adam"),
        ({"optimizer": "bytes_per_parameter=-1"}, "bytes_per_parameter=N"),
        ({"strategies": ["data", "tensr"]}, "did you mean 'tensor'"),
        ({"goal": "speed"}, "device-hours"),
        ({"micro": 3}, "nearest 2 and 4"),
        ({"max_memory_bytes": 0}, "max_memory_bytes"),
    ],
)
def test_refused(changes, said):
    """Each mistake is told with its value and what is allowed."""
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        Oracle(make_cluster()).rank(make_transformer(), **{"batch": 16, **changes})


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        (Degrees(tensor=3), "tensor: got 3"),
        (Degrees(filter=2), "tensor parallelism divides"),
        (Degrees(data=3), "batch: got 16 for 3 replicas"),
        (Degrees(pipeline=7), "at most 6: the blocks"),
    ],
)
def test_estimate_refuses(degrees, said):
    """A plan that the model or the batch cannot be divided by."""
    with pytest.raises(InputError, match=said):
        Oracle(make_cluster()).estimate(make_transformer(), batch=16, degrees=degrees)


def test_limits_of_filters():
    """ResNet's 64 filters allow 64 devices, not 65; the layer is named."""
    profile = make_convolutions((3, 64, 128), 16)
    oracle = Oracle(make_cluster(32, 4))
    assert oracle.estimate(profile, batch=1, degrees=Degrees(filter=64)).strategy == "filter"
    with pytest.raises(InputError, match="at most 64: the 64 filters of conv0"):
        oracle.estimate(profile, batch=1, degrees=Degrees(filter=65))
