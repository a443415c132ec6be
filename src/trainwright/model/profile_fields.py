"""The fields of a profile: what a model does with one batch, as a chain of blocks of layers.

They are apart from `Profile`, which makes, reads and writes profiles by modules that need only the fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.model.layer import Block, Layer

__all__ = ["ProfileFields"]


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
