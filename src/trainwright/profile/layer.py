"""Layer: one operation of a model with its work and its bytes; Block: a run of layers between two cuts of the graph."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Block", "Kind", "Layer", "Transformer"]

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
    """Weights and biases of this layer; 0 for a weight that an earlier layer has already counted (tied)."""
    forward_flops: float = 0.0
    """A multiply-add counts as two."""
    backward_flops: float = 0.0
    forward_bytes: int = 0
    """Bytes that the operation reads and writes (the roofline's other side)."""
    backward_bytes: int = 0
    saved_bytes: int = 0
    """Bytes of distinct storages that autograd keeps because of this layer, each counted where it is first kept."""
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    update_seconds: float | None = None
    channels: int = 0
    """Input channels (convolution) or features (linear), C; 0 where it means nothing."""
    filters: int = 0
    """Output channels or features, F."""
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    input_size: tuple[int, ...] = ()
    """Spatial sizes of the input (height, width or depth, height, width); () where there are none."""
    output_size: tuple[int, ...] = ()
    launches: int = 1
    """Kernels of the forward pass."""
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
    """A stage of the chain: `count` equal runs of layers, one after another, each between two cuts of the graph.

    A cut is a place where exactly one storage is live from the forward pass so far to the rest. The byte numbers of
    a block follow the conventions of memory planning: `kept_bytes` is everything that autograd holds for one run
    of the block, its output included and its input excluded.
    """

    name: str
    layers: tuple[Layer, ...]
    count: int = 1
    output_bytes: int = 0
    """Bytes of what one run hands on (of the distinct storages of the live tensors at the cut)."""
    kept_bytes: int = 0
    forward_temporary_bytes: int = 0
    """Peak during forward beyond input, output and what is kept."""
    backward_temporary_bytes: int = 0
    """Peak during backward beyond what is kept, both gradients and the input."""
    gradient_bytes: int = 0
    """Bytes of the gradient of the output, its differentiable part."""
    transformer: Transformer | None = None
    members: tuple[str, ...] = field(default=())
    """Names of the runs, if they are more than one."""
