"""Clusters and models that the tests of the oracle share."""

from itertools import pairwise

from trainwright.cluster import Cluster, Device, NetworkLevel
from trainwright.model.describe.transformer import describe_transformer
from trainwright.model.layer import Block, Layer
from trainwright.model.profile import Profile

DEVICE = Device(
    kind="made-up",
    memory_bytes=16 * 10**9,
    flops={"fp32": 15e12, "bf16": 120e12, "fp16": 120e12},
    memory_bandwidth=900e9,
    launch_seconds=5e-6,
)


def make_cluster(nodes=4, per_node=4, **changes):
    inside = NetworkLevel(name="inside", devices=per_node, alpha=9e-6, bandwidth=50e9)
    outside = NetworkLevel(name="outside", devices=nodes * per_node, alpha=30e-6, bandwidth=12.5e9, links_per_node=2)
    tiers = (inside, outside) if nodes > 1 else (inside,) if per_node > 1 else ()
    return Cluster(nodes, per_node, **{"name": "made-up", "device": DEVICE, "tiers": tiers, **changes})


def make_transformer(layers=4, **changes):
    shape = {"hidden": 256, "heads": 8, "sequence": 128, "vocabulary": 1000, "precision": "fp32"}
    return describe_transformer(layers=layers, **{**shape, **changes})


def make_convolutions(channels=(3, 16, 32, 32), size=32, *, stride=1):
    """Return a chain of 3x3 convolutions of equal padding and a classifier, of one sample."""
    blocks = []
    for place, (inputs, outputs) in enumerate(pairwise(channels)):
        after = (size + stride - 1) // stride
        x, y, w = inputs * size**2, outputs * after**2, 9 * inputs * outputs
        layer = Layer(
            name=f"conv{place}",
            kind="conv",
            input_elements=x,
            output_elements=y,
            weight_elements=w + outputs,
            forward_flops=2.0 * 9 * inputs * y,
            backward_flops=4.0 * 9 * inputs * y,
            forward_bytes=4 * (x + y + w),
            backward_bytes=8 * (x + y + w),
            saved_bytes=4 * x,
            channels=inputs,
            filters=outputs,
            kernel=(3, 3),
            stride=(stride, stride),
            padding=(1, 1),
            dilation=(1, 1),
            input_size=(size, size),
            output_size=(after, after),
        )
        size = after
        blocks.append(_closed(layer, 4 * y))
    inputs = channels[-1] * size**2
    layer = Layer(
        name="classifier",
        kind="linear",
        input_elements=inputs,
        output_elements=10,
        weight_elements=10 * inputs + 10,
        forward_flops=20.0 * inputs,
        backward_flops=40.0 * inputs,
        forward_bytes=44 * inputs,
        backward_bytes=88 * inputs,
        saved_bytes=4 * inputs,
        channels=inputs,
        filters=10,
    )
    blocks.append(_closed(layer, 40))
    elements = sum(layer.weight_elements for block in blocks for layer in block.layers)
    return Profile(name="convolutions", batch=1, blocks=tuple(blocks), parameters=elements, input_bytes=4 * 3 * 32**2)


def _closed(layer, output_bytes):
    return Block(
        name=layer.name,
        layers=(layer,),
        output_bytes=output_bytes,
        saved_bytes=layer.saved_bytes,
        gradient_bytes=output_bytes,
    )
