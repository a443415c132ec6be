"""Layers of a model with their work and bytes, the blocks that they form between cuts of the graph, and the profile.

The fields of a profile are apart from `Profile`, which makes, reads and writes profiles by modules that need only the
fields.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from trainwright.model.chain import Stage

__all__ = ["ELEMENT_BYTES", "Block", "Kind", "Layer", "ProfileFields", "Transformer", "stages_of"]

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "amp-bf16": 2, "amp-fp16": 2}
"""Of an activation, by precision."""
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
    head_size: int = 0
    """Width of a head, 0: hidden / heads."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileFields:
    """A model and a sample batch of `batch` samples, as a chain of blocks in order of execution."""

    name: str
    batch: int
    blocks: tuple[Block, ...]
    precision: str = "fp32"
    """Precision that was traced; a plan may ask for another."""
    parameters: int = 0
    """Elements of all parameters, tied ones once."""
    parameter_bytes: int = 0
    trainable_elements: int = 0
    gradient_bytes: int = 0
    """Bytes of the gradients of all parameters that are trained."""
    buffer_bytes: int = 0
    input_bytes: int = 0
    common_bytes: int = 0
    """Bytes that several stages share in addition to the activations between them: masks, positions."""
    state_bytes: int = 0
    """Bytes that the optimizer holds."""
    update_bytes: int = 0
    """Most bytes that the optimizer's step takes on top of weights, gradients and state, and gives back."""
    peak_bytes: int | None = None
    """Peak of tracked bytes of one training step (forward, backward, update), where it was traced.

    A steady step: the optimizer's state is there, gradients of the step before are not (set to None).
    """
    workspace_bytes: int = 0
    """How much higher the peak is with what kernels borrow inside an operation, as on processors."""
    largest_workspace_bytes: int = 0
    """Most that one operation borrows."""
    peak_by_owner: Mapping[str, int] = field(default_factory=dict)
    """What the bytes at the peak are: "parameters", "activations", "gradients", "optimizer" and others."""
    granule_bytes: int = 1
    """What storages are rounded up to (64 on CPU, 512 on CUDA)."""
    optimizer: str = ""
    """Optimizer of the traced step."""
    origin: str = "traced"
    """"traced", "measured" or "described" (from a shape, without a module)."""
    framework_seconds: float = 0.0
    """Measured seconds of a forward and backward pass of the whole model that its layers do not explain.

    The pass adds to gradients that are there, as that of a micro-batch does.
    """
    smaller_batches: tuple[int, ...] = ()
    """Smaller numbers of samples, rising, of which the seconds were measured too: they do not fall in proportion."""
    smaller_framework_seconds: tuple[float, ...] = ()
    """`framework_seconds` of passes over these."""
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step that a profiler's trace told: "step", and of it "communication", "exposed" and "update"."""
    uncounted: tuple[str, ...] = ()
    """Operations whose work is not known and counts as none."""
    torch_version: str = ""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in order, those of repeated blocks as often as they run."""
        return tuple(layer for block in self.blocks for _ in range(block.count) for layer in block.layers)

    @property
    def weight_elements(self) -> int:
        """Elements of all weights."""
        return sum(block.count * layer.weight_elements for block in self.blocks for layer in block.layers)


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
        # A stage says only how many layers it has: each takes those that follow.
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
                # By convention what a stage saves counts its output, whether or not autograd holds that.
                saved_bytes=max(stage.saved_bytes, stage.output_bytes),
                parameter_bytes=round(weights * element_bytes),
                parameter_gradient_bytes=round((weights - frozen) * element_bytes),
            )
