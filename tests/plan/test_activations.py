"""Activation memory of published configurations (arXiv 2205.05198, as collected by Calculon)."""

from dataclasses import replace

import pytest
from oracle_cases import make_cluster, make_convolutions

from trainwright.model.describe.transformer import describe_transformer
from trainwright.plan import Degrees, Oracle
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import precision_of

GIB = 2**30
MODELS = {  # hidden, heads, layers, tensor, pipeline, chunks, micro-batch
    "22B": (6144, 64, 48, 8, 1, 1, 4),
    "175B": (12_288, 96, 96, 8, 8, 3, 1),
    "530B": (20_480, 128, 105, 8, 35, 3, 1),
    "1T": (25_600, 160, 128, 8, 64, 1, 1),
}


def activations(name, *, sequence=False, recompute="none"):
    hidden, heads, layers, tensor, pipeline, chunks, micro = MODELS[name]
    profile = describe_transformer(hidden=hidden, heads=heads, layers=layers, sequence=2048, vocabulary=0)
    cluster = make_cluster(70, 8)
    plan = Oracle(cluster).estimate(
        profile,
        batch=max(1, pipeline) * 4 * micro,
        degrees=Degrees(tensor=tensor, pipeline=pipeline),
        micro=micro,
        chunks=chunks,
        sequence=sequence,
        recompute=recompute,
        precision="amp-fp16",
    )
    return plan.activation_bytes / GIB


@pytest.mark.parametrize(("name", "published"), [("22B", 59.25), ("175B", 66.84), ("530B", 114.02), ("1T", 131.25)])
def test_all_kept(name, published):
    """What the first stage keeps without recomputation."""
    assert activations(name) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("name", "sequence", "recompute", "percent"),
    [
        ("22B", False, "selective", 49.42),
        ("22B", True, "selective", 16.18),
        ("22B", False, "full", 7.64),
        ("175B", False, "selective", 56.53),
        ("175B", True, "selective", 18.49),
        ("530B", True, "none", 58.31),
        ("1T", True, "none", 58.31),
    ],
)
def test_part_kept(name, sequence, recompute, percent):
    """What sequence parallelism and recomputation leave of it, in percent."""
    found = 100 * activations(name, sequence=sequence, recompute=recompute) / activations(name)
    assert found == pytest.approx(percent, rel=0.02)


def test_copies_of_weights_are_counted_with_the_state_alone():
    """What autocast keeps of weights is no activation: it is there once, however many samples there are."""
    profile = make_convolutions((3, 8, 8))
    block = profile.blocks[0]
    kept = block.layers[0].saved_bytes
    layer = replace(block.layers[0], saved_bytes=kept + 432, copied_bytes=432)
    traced = replace(block, layers=(layer,), saved_bytes=kept + 432)
    copied = replace(profile, blocks=(traced, *profile.blocks[1:]))
    precision = precision_of("fp32")
    assert ModelArrays(copied, precision).saved.tolist() == pytest.approx(
        ModelArrays(profile, precision).saved.tolist()
    )
