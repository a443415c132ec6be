"""Layers of a model with their work and bytes, and the blocks that they form between cuts of the graph."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from trainwright.model.chain import Stage

__all__ = ["Block", "Kind", "Layer", "Transformer", "stages_of"]

Kind = Literal["conv", "linear", "norm", "attention", "embedding", "pool", "pointwise", "loss", "other"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """An operation that has weights, or moves enough data to count. Numbers are for the whole traced batch.

    Elements become bytes by the profile's (or a plan's) precision; `seconds` are None until they are measured.
    """

    name: str
    """Path of the module, and the operation if a module has several."""
    kind: Kind
    input_elements: int
    output_elements: int
    weight_elements: int = 0
    """WeightCounter and biases of this layer; 0 for a weight that an earlier layer has already counted (tied)."""
    frozen_elements: int = 0
    """Of them, those that get no gradient: frozen, or read where no gradients flow, or by nothing."""
    forward_flops: float = 0.0
    """A multiply-add counts as two."""
    backward_flops: float = 0.0
    forward_bytes: int = 0
    """Bytes that the operation reads and writes (the roofline's other side)."""
    backward_bytes: int = 0
    saved_bytes: int = 0
    """Bytes of distinct storages that autograd saves because of this layer, each counted where it is first saved."""
    copied_bytes: int = 0
    """Of them, copies of weights in another precision, as autocast makes them: they do not grow with the batch."""
    rerun_bytes: int = 0
    """Bytes that are not saved if a call of torch's scaled_dot_product_attention is run again; 0 for other layers."""
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    update_seconds: float | None = None
    smaller_forward_seconds: tuple[float, ...] = ()
    """Of each of the profile's `smaller_batches`, where these were measured."""
    smaller_backward_seconds: tuple[float, ...] = ()
    channels: int = 0
    """Input channels (convolution) or features (linear), C; 0 where it means nothing."""
    filters: int = 0
    """Output channels or features, F."""
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    """Whether a convolution is transposed: its stride then multiplies the sizes."""
    input_size: tuple[int, ...] = ()
    """Spatial sizes of the input (height, width or depth, height, width); () where there are none."""
    output_size: tuple[int, ...] = ()
    launches: int = 1
    """Kernels of the forward pass."""
    backward_launches: int = 0
    origin: str = ""
    """Where the seconds come from: "measured", "roofline", or "" where there are none."""
    experts: int = 0
    """Of how many experts, side by side, the weights are; 0: of none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformer:
    """Shape of a transformer block, where one was recognised: what tensor, sequence and context parallelism divide."""

    hidden: int
    heads: int
    sequence: int
    kv_heads: int = 0
    """0: as many as heads."""
    feedforward: int = 0
    """Width of the inner layer of the feed-forward part, 0: 4 * hidden."""
    experts: int = 0
    """Feed-forward parts side by side, 0: one that every token visits."""
    top_k: int = 1
    """Experts that a token visits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """`count` equal runs of layers, one after another, each between two cuts of the graph; `stages` are its finer cuts.

    The byte numbers are those of one run taken as a whole, in the conventions of `Stage`.
    """

    name: str
    layers: tuple[Layer, ...]
    count: int = 1
    output_bytes: int = 0
    saved_bytes: int = 0
    forward_temporary_bytes: int = 0
    no_grad_temporary_bytes: int = 0
    backward_temporary_bytes: int = 0
    gradient_bytes: int = 0
    transformer: Transformer | None = None
    stages: tuple[Stage, ...] = ()
    """Runs of layers between neighbouring cuts, in order, whose layers are this block's; () if it is one stage."""
    members: tuple[str, ...] = field(default=())
    """Names of the runs, if they are more than one."""
    begins: tuple[str, ...] = field(default=())
    """Of each run, the path of the outermost module that begins with its first layer with weights; "" if it has none.

    A pipeline can be cut there; () of a described model, whose layers are no modules.
    """


def stages_of(block: Block, element_bytes: float) -> Iterator[Stage]:
    """Yield the stages of all runs of a block, with the seconds of their layers and the bytes of their parameters."""
    whole = Stage(
        name=block.name,
        forward_seconds=0.0,
        backward_seconds=0.0,
        output_bytes=block.output_bytes,
        saved_bytes=block.saved_bytes,
        gradient_bytes=block.gradient_bytes,
        forward_temporary_bytes=block.forward_temporary_bytes,
        backward_temporary_bytes=block.backward_temporary_bytes,
        no_grad_forward_temporary_bytes=block.no_grad_temporary_bytes,
        layers=len(block.layers),
    )
    for _ in range(block.count):
        layers = iter(block.layers)
        for stage in block.stages or (whole,):
            own = list(islice(layers, stage.layers))
            weights, frozen = (
                sum(getattr(each, name) for each in own) for name in ("weight_elements", "frozen_elements")
            )
            yield replace(
                stage,
                forward_seconds=sum(layer.forward_seconds or 0.0 for layer in own),
                backward_seconds=sum(layer.backward_seconds or 0.0 for layer in own),
                saved_bytes=max(stage.saved_bytes, stage.output_bytes),
                parameter_bytes=round(weights * element_bytes),
                parameter_gradient_bytes=round((weights - frozen) * element_bytes),
            )
