"""Profile: what a model does with one batch: a chain of blocks of layers with their work, time and bytes."""

from dataclasses import dataclass

from trainwright.profile.layer import Block, Layer

__all__ = ["Profile"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
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
    buffer_bytes: int = 0
    input_bytes: int = 0
    peak_bytes: int | None = None
    """Peak of tracked bytes of one training step (forward, backward, update), where it was traced."""
    optimizer: str = ""
    """Optimizer of the traced step."""
    origin: str = "traced"
    """"traced", "measured" or "described" (from a shape, without a module)."""
    framework_seconds: float = 0.0
    """Measured seconds of a whole iteration that its layers do not explain."""
    uncounted: tuple[str, ...] = ()
    """Operations whose work is not known and counts as none."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in order, those of repeated blocks as often as they run."""
        return tuple(layer for block in self.blocks for _ in range(block.count) for layer in block.layers)

    @property
    def weight_elements(self) -> int:
        """Elements of all weights."""
        return sum(block.count * layer.weight_elements for block in self.blocks for layer in block.layers)
