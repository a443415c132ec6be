"""Profile: what a model does with one batch: a chain of blocks of layers with their work, time and bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.cluster import Device
from trainwright.model.layer import Block, Layer

if TYPE_CHECKING:
    from torch import nn

    from trainwright.model.trace.step import Loss, MakeOptimizer

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
    gradient_bytes: int = 0
    """Bytes of the gradients of all parameters that are trained."""
    buffer_bytes: int = 0
    input_bytes: int = 0
    common_bytes: int = 0
    """Bytes that several stages share beside the activations handed on: masks, positions."""
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

    @classmethod
    def trace(
        cls,
        model: "nn.Module",
        sample: Any,
        *,
        loss: "Loss | None" = None,
        optimizer: "str | MakeOptimizer | None" = "adamw",
        precision: str = "fp32",
        device: str | None = None,
        name: str = "",
        fold: bool = True,
        fuse: bool = False,
    ) -> "Profile":
        """Return the profile of one training step, found without running a kernel (fake tensors).

        `sample` is a tensor, a tuple of arguments or a mapping of keywords, on any device or on `meta`; with
        `loss(model, sample)`, a scalar, it is whatever that takes. `optimizer` is "sgd", "momentum", "adam", "adamw", a
        function of the parameters, or None for no update; `precision` fp32 (as the model is), amp-fp16, amp-bf16 or
        bf16. Without `fold` equal stages stay apart. With `fuse` what lies between two products of a stage is one
        kernel, as `torch.compile(model)` makes it, and its inside reaches no memory; a loss outside the model stays as
        it is, and the step's peak is not known. The model is copied without its data and stays as it is.

        A model that depends on values cannot be traced: its step is then run and timed, as by `measured`, and
        `origin` says so. Raises ProfileError, with the module and the operation, if that fails too.
        """
        from trainwright.model.measure.measured import Request, traced

        return traced(
            Request(
                model=model,
                sample=sample,
                loss=loss,
                optimizer=optimizer,
                precision=precision,
                device=device,
                name=name,
                fold=fold,
                fuse=fuse,
            )
        )

    @classmethod
    def measured(
        cls,
        model: "nn.Module",
        sample: Any,
        *,
        loss: "Loss | None" = None,
        optimizer: "str | MakeOptimizer | None" = "adamw",
        precision: str = "fp32",
        device: str | None = None,
        name: str = "",
        fold: bool = True,
        warmup: int = 3,
        repeats: int = 10,
    ) -> "Profile":
        """Return the profile of `trace` with the seconds of every layer on this machine (or its CUDA device).

        Each operation is run alone on tensors like the model's, once for all of equal shapes, dtypes and strides: the
        least of `repeats` times after `warmup`. Passes through a copy of the model are timed too: what these take more
        than the sum (weights and gradients that no cache holds; or less, if negative) is `framework_seconds`. All this
        is measured of a quarter, a sixteenth and a sixty-fourth of the batch too, where the model takes them, for small
        operations use a device less well: the oracle reads the seconds of a micro-batch off straight lines between
        them. Operations that cannot be run alone are listed in `uncounted`. Raises ProfileError as `trace` does, and
        for clocks that stand still or go back.
        """
        from trainwright.model.measure.measured import Request, measured

        request = Request(
            model=model,
            sample=sample,
            loss=loss,
            optimizer=optimizer,
            precision=precision,
            device=device,
            name=name,
            fold=fold,
        )
        return measured(request, warmup=warmup, repeats=repeats)

    def on(self, device: Device, *, precision: str | None = None) -> "Profile":
        """Return this profile with seconds on `device` for every layer that has no measured ones, by the roofline.

        With another `precision` than the profile's all layers are predicted. Raises ProfileError for a device whose
        speed at that precision is not known.
        """
        from trainwright.model.measure.roofline import predicted

        return predicted(self, device, precision=precision)

    @classmethod
    def load(cls, path: str | Path) -> "Profile":
        """Read a profile from a JSON file. Raises ProfileError for another schema or version of torch."""
        from trainwright.model.profile_files import load

        return load(path)

    def save(self, path: str | Path) -> None:
        """Write the profile to a JSON file."""
        from trainwright.model.profile_files import save

        save(self, path)

    @property
    def hash(self) -> str:
        """Hash of the chain, its work and its bytes, without times."""
        from trainwright.model.profile_files import hash_of

        return hash_of(self)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in order, those of repeated blocks as often as they run."""
        return tuple(layer for block in self.blocks for _ in range(block.count) for layer in block.layers)

    @property
    def weight_elements(self) -> int:
        """Elements of all weights."""
        return sum(block.count * layer.weight_elements for block in self.blocks for layer in block.layers)
