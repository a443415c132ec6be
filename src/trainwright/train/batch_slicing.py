"""Batches as trees of tensors: counted, cut along their first axis, trained part by part, placed on a device."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trainwright.errors import TrialError

__all__ = ["place_batch", "samples_in", "slice_batch", "train_parts"]


def samples_in(batch: Any) -> int:
    """Return how many samples a batch has. Raises `TrialError` if its parts differ, or if it has no such parts."""
    import torch

    if isinstance(batch, torch.Tensor):
        if batch.ndim == 0:
            raise TrialError("a batch of one number cannot be cut; allowed: tensors whose first axis is the samples")
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, Mapping | list | tuple) or not parts:
        raise TrialError(
            f"a batch of {type(batch).__name__} cannot be cut into parts; allowed: tensors in lists and dicts"
        )
    counts = {samples_in(part) for part in parts}
    if len(counts) > 1:
        raise TrialError(f"a batch whose tensors have {sorted(counts)} samples cannot be cut; give them all as many")
    return counts.pop()


def slice_batch(batch: Any, size: int) -> list[Any]:
    """Return the parts of a batch, of `size` samples each; the last may have fewer."""
    import torch

    if isinstance(batch, torch.Tensor):
        return list(batch.split(size))
    if isinstance(batch, Mapping):
        parts = {key: slice_batch(item, size) for key, item in batch.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    rows = zip(*(slice_batch(item, size) for item in batch), strict=True)
    return [type(batch)(*row) if hasattr(batch, "_fields") else type(batch)(row) for row in rows]


def train_parts(
    model: Any,
    loss: Callable[[Any, Any], Any],
    parts: Sequence[tuple[float, Any]],
    *,
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
    expect: Callable[[Any], None] = lambda _: None,
) -> Any:
    """Add up the gradients of a batch's parts, each times its weight; return the sum of their losses, detached.

    All but the last are done in the context `alone`. `expect` is told each part before its loss is computed, and None
    when it is.
    """
    total: Any = 0.0
    for number, (weight, part) in enumerate(parts, 1):
        with nullcontext() if number == len(parts) else alone():
            expect(part)
            value = loss(model, part)
            expect(None)
            # A batch that is not cut has the loss that the user computes, to the bit.
            value = value if weight == 1.0 else value * weight
            value.backward()
        total = value.detach() if weight == 1.0 else total + value.detach()
    return total


def place_batch(batch: Any, device: str) -> Any:
    """Return a batch with its tensors on `device`: tensors, mappings, named tuples, tuples and lists of them."""
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: place_batch(item, device) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(place_batch(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(place_batch(item, device) for item in batch)
    return batch
