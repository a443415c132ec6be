"""What large language models are trained with: shards over contexts, recomputation by operator, float8."""

import dataclasses

import pytest
from oracle_cases import DEVICE, make_cluster, make_transformer

from trainwright.cluster import Device
from trainwright.errors import InputError
from trainwright.plan import Degrees, Oracle
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import precision_of

LLAMA = {"gated": True, "kv_heads": 2, "feedforward": 768, "fused_attention": True, "dropout": False, "biases": False}


def estimate(profile=None, *, cluster=None, **choices):
    oracle = Oracle(cluster or make_cluster())
    return oracle.estimate(profile or make_transformer(**LLAMA), **{"batch": 8, "precision": "amp-bf16", **choices})


def operations(plan):
    return {(each.operation, each.axis) for each in plan.collectives}


def test_shards_lie_over_context_ranks_too():
    """State is divided by all copies, and their gradients need no sum of their own; by default by the data ranks."""
    degrees = Degrees(context=2, data=4)
    whole, wide, narrow = (
        estimate(degrees=degrees, **choices) for choices in ({}, {"zero": 3, "shard": 8}, {"zero": 3})
    )
    assert (wide.shard, narrow.shard) == (8, 4)
    per_parameter = 4 + 4 + 8  # gradients, master copy, Adam: weights are cast from the master's shards
    assert whole.state_bytes == (per_parameter + 2) * make_transformer(**LLAMA).parameters
    assert wide.state_bytes == pytest.approx(whole.state_bytes * per_parameter / (per_parameter + 2) / 8)
    assert narrow.state_bytes == pytest.approx(2 * wide.state_bytes)
    assert ("all_reduce", "context+spatial+expert") in operations(narrow)
    assert not any(operation == "all_reduce" for operation, _ in operations(wide))
    with pytest.raises(InputError, match="shard: got 3; allowed: 8, or a divisor of the 4 data ranks"):
        estimate(degrees=degrees, zero=3, shard=3)


def test_recomputation_by_operator_keeps_every_second_product():
    """Of a block stay its input, the outputs of attention and of the first and third of four products."""
    profile = make_transformer(**LLAMA)
    found = {
        name: estimate(profile, batch=1, degrees=Degrees(), recompute=name) for name in ("none", "full", "operators")
    }
    block = next(block for block in profile.blocks if block.transformer)
    kept = [layer for layer in block.layers if layer.name in {"attention.in", "attention", "feedforward.in"}]
    more = block.count * sum(2 * layer.output_elements for layer in kept)
    bytes_kept = {name: plan.activation_bytes for name, plan in found.items()}
    assert bytes_kept["operators"] - bytes_kept["full"] == more
    assert bytes_kept["full"] < bytes_kept["operators"] < bytes_kept["none"]
    seconds = {name: plan.breakdown.compute for name, plan in found.items()}
    assert seconds["none"] < seconds["operators"] < seconds["full"]


def test_the_end_of_a_block_is_not_run_again():
    """The last product's output is only handed on; dropout behind it keeps a mask, and then it is needed."""
    extra = []
    for dropout in (False, True):
        profile = make_transformer(**{**LLAMA, "dropout": dropout})
        plain, full = (
            estimate(profile, degrees=Degrees(), recompute=name).breakdown.compute for name in ("none", "full")
        )
        extra.append((full - plain) / plain)
    assert extra[0] < 0.9 * extra[1]


def test_float8_multiplies_faster_and_casts():
    """Products of blocks run at the speed for a byte an element, and each operand moves five bytes more."""
    quick = dataclasses.replace(DEVICE, flops={**DEVICE.flops, "fp8": 240e12}, memory_bandwidth=1e18)
    slow = dataclasses.replace(quick, memory_bandwidth=100e9)
    profile = make_transformer(**{**LLAMA, "hidden": 4096, "feedforward": 16384})
    seconds = {
        (device.memory_bandwidth, precision): estimate(
            profile, cluster=make_cluster(device=device), degrees=Degrees(), precision=precision
        ).breakdown.compute
        for device in (quick, slow)
        for precision in ("amp-bf16", "amp-fp8")
    }
    assert 0.5 < seconds[1e18, "amp-fp8"] / seconds[1e18, "amp-bf16"] < 0.7
    assert seconds[100e9, "amp-fp8"] > seconds[100e9, "amp-bf16"]
    with pytest.raises(InputError, match=r"device\.flops has no fp8; allowed: a device that has, or amp-bf16"):
        estimate(degrees=Degrees(), precision="amp-fp8")
    assert Device(flops={"fp8": 1e15}).flops["fp8"] == 1e15


def test_a_ring_divides_head_and_loss_too():
    """Every rank has its part of all positions; keys and values are sent beside attention, twice as often backward."""
    one, gathered, ring = (
        estimate(batch=1, degrees=Degrees(context=ranks), context_by=ring)
        for ranks, ring in ((1, ""), (4, ""), (4, "ring"))
    )
    assert ring.activation_bytes == one.activation_bytes / 4 < gathered.activation_bytes
    assert ring.breakdown.compute < gathered.breakdown.compute
    sent = {each.phase: each.count for each in ring.collectives if each.axis == "context"}
    assert sent == {"forward": 4 * 3, "backward": 4 * 6}
    assert {each.operation for each in ring.collectives if each.axis == "context"} == {"send"}


def test_the_loss_works_on_its_part_of_the_logits_though_it_is_a_block_of_its_own():
    profile = make_transformer(**LLAMA)
    *before, head = profile.blocks
    apart = [dataclasses.replace(head, layers=(layer,)) for layer in head.layers]
    divided = dataclasses.replace(profile, blocks=(*before, *apart))
    precision = precision_of("amp-bf16")
    assert ModelArrays(divided, precision).roles == ModelArrays(profile, precision).roles
    assert ModelArrays(divided, precision).roles[-1] == "inside"


def test_uneven_routing_takes_longer_where_experts_are_divided():
    """The rank whose experts get most tokens is waited for; one rank that has all experts does as much as before."""
    profile = make_transformer(experts=4)
    for degrees, longer in ((Degrees(expert=2), True), (Degrees(), False)):
        even, uneven = (
            Oracle(make_cluster(1, 2), expert_imbalance=factor).estimate(profile, batch=8, degrees=degrees)
            for factor in (1.0, 1.5)
        )
        assert (uneven.breakdown.compute > even.breakdown.compute) is longer
    with pytest.raises(InputError, match=r"expert_imbalance: got 0.5; allowed: a number >= 1"):
        Oracle(make_cluster(1, 2), expert_imbalance=0.5)
