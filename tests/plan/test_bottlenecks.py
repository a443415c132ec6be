"""Every bottleneck: a plan that has it, and one like it that has not."""

from dataclasses import replace

import numpy as np
from oracle_cases import DEVICE, make_cluster, make_convolutions, make_transformer

from trainwright.cluster import NetworkLevel
from trainwright.cluster.device import DeviceFailures, Storage
from trainwright.plan import Degrees, Input, Oracle, Saving


def found(profile, cluster, *, batch=16, **choices):
    plan = Oracle(cluster).estimate(profile, batch=batch, **choices)
    for each in plan.bottlenecks:
        assert any(sign.isdigit() for sign in each.sentence)
        assert each.advice
    return {each.id: each for each in plan.bottlenecks}


def linked(factor=1.0, links=2, alpha=30e-6):
    tiers = make_cluster().tiers
    far = NetworkLevel(name="outside", devices=16, alpha=alpha, bandwidth=12.5e9 / factor, links_per_node=links)
    return make_cluster(tiers=(replace(tiers[0], bandwidth=tiers[0].bandwidth / factor), far))


BIG = make_transformer(layers=12, hidden=1024, heads=16, sequence=512, vocabulary=30_000)
CONVOLUTIONS = make_convolutions((3, 64, 64, 64, 64), 64)


def test_gradient_exchange():
    """Slow links leave gradients to wait for; one device has none."""
    slow = found(BIG, linked(30), degrees=Degrees(data=16))
    assert slow["gradient-exchange"].share > 0.5
    assert "gradient-exchange" not in found(BIG, linked(), degrees=Degrees())


def test_layer_collectives():
    """Filters over eight devices and two nodes wait more than over two of one node."""
    far = found(CONVOLUTIONS, linked(), degrees=Degrees(filter=8))
    near = found(CONVOLUTIONS, linked(), degrees=Degrees(filter=2))
    assert (
        far["layer-collectives"].share > near.get("layer-collectives", replace(far["layer-collectives"], share=0)).share
    )
    assert "layer-collectives" not in found(CONVOLUTIONS, linked(), degrees=Degrees(data=8))


def test_point_to_point():
    """A latency of 3 ms is what halos wait for, and is called that; with none there is nothing to say."""
    slow = found(CONVOLUTIONS, linked(alpha=3e-3), degrees=Degrees(spatial=8))
    assert "latency" in slow["point-to-point"].sentence
    assert "point-to-point" not in found(CONVOLUTIONS, linked(alpha=0.0), batch=256, degrees=Degrees(data=4, spatial=4))


def test_congestion():
    """Four rings through one uplink share it, through four they do not."""
    one = found(BIG, linked(links=1), degrees=Degrees(tensor=4, data=4))
    assert "4 groups share" in one["congestion"].sentence
    assert "congestion" not in found(BIG, linked(links=4), degrees=Degrees(tensor=4, data=4))


def test_input():
    """A slow disk is waited for; without a description of the input nothing is."""
    disk = make_cluster(storage=Storage(node_read=1e6))
    slow = found(CONVOLUTIONS, disk, degrees=Degrees(data=4), input=Input(bytes=110e3))
    assert slow["input"].share > 0.5
    assert "input" not in found(CONVOLUTIONS, disk, degrees=Degrees(data=4))


def test_memory_redundancy():
    """Replicas of Adam's state are copies; FSDP has none."""
    assert "memory-redundancy" in found(BIG, linked(), degrees=Degrees(data=16))
    assert "memory-redundancy" not in found(BIG, linked(), degrees=Degrees(data=16), zero=3)


def test_weight_update():
    """Adam on one sample is mostly update; over sixteen FSDP ranks it is not."""
    assert "weight-update" in found(BIG, linked(), batch=1, degrees=Degrees(), precision="amp-bf16")
    assert "weight-update" not in found(BIG, linked(), degrees=Degrees(data=16), zero=3, precision="amp-bf16")


def test_imbalance():
    """One fat block makes a slow stage; equal blocks do not."""
    fat = replace(BIG.blocks[1], count=1)
    layers = tuple(replace(layer, forward_flops=40 * layer.forward_flops) for layer in fat.layers)
    uneven = replace(BIG, blocks=(*BIG.blocks[:2], replace(fat, layers=layers), BIG.blocks[2]))
    assert "imbalance" in found(uneven, linked(), degrees=Degrees(pipeline=4), micro=1)
    even = replace(BIG, blocks=BIG.blocks[1:2])
    assert "imbalance" not in found(even, linked(), degrees=Degrees(pipeline=4), micro=1)


def test_redundant_compute():
    """Parts of layers whose launches take most of their time are told; parts that shrink evenly are not."""
    slow = make_cluster(device=replace(DEVICE, launch_seconds=1e-2))
    assert "redundant-compute" in found(CONVOLUTIONS, slow, degrees=Degrees(filter=4))
    assert "redundant-compute" not in found(CONVOLUTIONS, linked(), batch=256, degrees=Degrees(filter=4))


def test_bubble():
    """As many micro-batches as stages leave bubbles, sixteen times as many hardly any."""
    assert "bubble" in found(BIG, linked(), batch=4, degrees=Degrees(pipeline=4), micro=1)
    assert "bubble" not in found(BIG, linked(), batch=64, degrees=Degrees(pipeline=4), micro=1)


def test_small_batch():
    """One sample of a small model a device is mostly fixed cost, many are not."""
    small = make_convolutions((3, 8, 8), 8)
    assert "small-batch" in found(small, linked(), degrees=Degrees(data=16))
    assert "small-batch" not in found(CONVOLUTIONS, linked(), batch=1024, degrees=Degrees(data=16))


def test_checkpoint():
    """Devices that fail every day make saves and restarts felt, devices that never fail do not."""
    saving = Saving(seconds=30.0, restart_seconds=300.0)
    frail = make_cluster(failure=DeviceFailures(device_mtbf_hours=24))
    assert "checkpoint" in found(BIG, frail, degrees=Degrees(data=16), saving=saving)
    assert "checkpoint" not in found(BIG, make_cluster(), degrees=Degrees(data=16), saving=saving)


def test_launch_bound():
    """Tiny layers are launches, large ones are not."""
    small = make_convolutions((3, 8, 8), 8)
    assert "launch-bound" in found(small, linked(), batch=1, degrees=Degrees())
    assert "launch-bound" not in found(CONVOLUTIONS, linked(), batch=256, degrees=Degrees())


def test_largest_first():
    """Bottlenecks are told in the order of their shares."""
    shares = [each.share for each in found(BIG, linked(30), degrees=Degrees(data=16)).values()]
    assert shares == sorted(shares, reverse=True)
    assert np.isfinite(shares).all()
