"""A fused profile is that of a compiled model: a kernel between two products, whose inside reaches no memory."""

import torch
from torch import nn
from zoo import llama

import trainwright as tw

ROWS, WIDTH = 8, 32
SIZE = 4 * ROWS * WIDTH


class Between(nn.Module):
    """Two products with five pointwise operations in between, of which autograd keeps several results."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = self.first(x)
        return self.second((y.sin() * y.exp()).tanh().sigmoid())


def between(*, fuse):
    profile = tw.Profile.trace(Between(), torch.randn(ROWS, WIDTH), fuse=fuse)
    return [layer for layer in profile.layers if layer.kind == "pointwise"]


def test_a_kernel_reads_its_inputs_and_writes_what_others_read():
    [kernel] = between(fuse=True)
    assert kernel.launches == kernel.backward_launches == 1
    assert kernel.forward_bytes == 2 * SIZE
    assert kernel.backward_bytes == 4 * SIZE  # its input anew, its result, and gradients in and out
    assert sum(layer.forward_bytes for layer in between(fuse=False)) == 11 * SIZE


def test_autograd_keeps_the_inputs_of_a_kernel_and_none_of_its_inside():
    profiles = [tw.Profile.trace(Between(), torch.randn(ROWS, WIDTH), fuse=fuse) for fuse in (False, True)]
    plain, fused = (sum(layer.saved_bytes for layer in profile.layers) for profile in profiles)
    assert plain == 5 * SIZE  # y, its sine and exponential, tanh, sigmoid
    assert fused == 2 * SIZE  # y, and what the second product reads


def trace_model(**settings):
    return tw.Profile.trace(
        llama.llama("tiny", vocabulary=97), llama.sample(2, 16, 97), loss=llama.next_token_loss, **settings
    )


def test_products_and_the_loss_outside_the_model_stay_as_they_are():
    plain, fused = trace_model(), trace_model(fuse=True)
    for direction in ("forward_flops", "backward_flops"):
        counts = [sum(getattr(layer, direction) for layer in profile.layers) for profile in (plain, fused)]
        assert counts[0] == counts[1]
    ends = [[layer for block in profile.blocks[-2:] for layer in block.layers] for profile in (plain, fused)]
    assert ends[0] == ends[1]
    assert sum(layer.forward_bytes for layer in fused.layers) < sum(layer.forward_bytes for layer in plain.layers)
    assert fused.weight_elements == plain.weight_elements
    assert fused.peak_bytes is None
    shapes = [block.transformer for block in fused.blocks if block.transformer]
    assert {(shape.kv_heads, shape.feedforward) for shape in shapes} == {(2, 192)}
    assert all(layer.launches == 1 for layer in fused.layers if layer.name.startswith("layers"))
