"""Profiles from a shape: weights, operations and kept bytes of the published formulas."""

import pytest

from trainwright.errors import InputError
from trainwright.model.describe.transformer import describe_transformer

GPT3 = {"hidden": 12_288, "layers": 96, "heads": 96, "sequence": 2048, "vocabulary": 51_200}


def block_of(**changes):
    return describe_transformer(**{**GPT3, **changes}).blocks[1]


def test_kept_bytes_of_a_block():
    """Autograd keeps s h (34 + 5 a s / h) bytes of a block in half precision (arXiv 2205.05198, equation 1)."""
    s, h, a = 2048, 12_288, 96
    assert block_of().saved_bytes == s * h * 34 + 5 * a * s * s
    assert block_of(fused_attention=True).saved_bytes == s * h * 34 + 4 * a * s


def test_weights():
    """A block has 12 h^2 + 13 h weights; GPT-3 has 175 billion; a tied head has none of its own."""
    h = 12_288
    profile = describe_transformer(**GPT3)
    assert sum(layer.weight_elements for layer in profile.blocks[1].layers) == 12 * h * h + 13 * h
    assert profile.parameters == 96 * (12 * h * h + 13 * h) + (51_200 + 2048) * h + 2 * h
    alone = describe_transformer(**{**GPT3, "vocabulary": 0})
    assert alone.blocks == profile.blocks[1:2]
    untied = describe_transformer(**GPT3, tied=False)
    assert untied.parameters - profile.parameters == 51_200 * h


def test_operations():
    """A forward pass is 24 s h^2 (1 + s / 6h) operations a block, and 2 s h V at the head (appendix A)."""
    s, h = 2048, 12_288
    profile = describe_transformer(**GPT3)
    block, head = profile.blocks[1:]
    assert sum(layer.forward_flops for layer in block.layers) == pytest.approx(24 * s * h * h * (1 + s / (6 * h)))
    assert sum(layer.forward_flops for layer in head.layers) == 2 * s * h * 51_200
    assert sum(layer.backward_flops for layer in block.layers) == 2 * sum(layer.forward_flops for layer in block.layers)


def test_variants():
    """Grouped keys make the first matrix narrower, a gated part doubles the inner one, experts multiply weights."""
    h = 12_288
    grouped = block_of(kv_heads=8, biases=False).layers[1]
    assert grouped.filters == h + 2 * h // 12
    assert grouped.weight_elements == h * grouped.filters
    assert block_of(gated=True).layers[6].filters == 8 * h
    plain, many = block_of(), block_of(experts=8, top_k=2)
    inner = {layer.name: layer for layer in plain.layers}["feedforward.in"]
    expert = {layer.name: layer for layer in many.layers}["feedforward.in"]
    assert (expert.weight_elements, expert.forward_flops) == (8 * inner.weight_elements, 2 * inner.forward_flops)
    assert many.transformer.experts == 8


@pytest.mark.parametrize(
    "changes", [{"hidden": 0}, {"layers": 1.5}, {"heads": 7}, {"kv_heads": 5}, {"precision": "f8"}]
)
def test_refused(changes):
    """Sizes below one, heads that do not divide, a precision nobody knows."""
    (name,) = changes
    with pytest.raises(InputError, match="heads" if name == "kv_heads" else name):
        describe_transformer(**{**GPT3, **changes})
