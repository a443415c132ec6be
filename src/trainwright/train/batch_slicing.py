"""Batches as trees of tensors: counted and cut along their first axis, and placed on a device."""

from collections.abc import Mapping
from typing import Any

from trainwright.errors import TrialError

__all__ = ["place_batch", "samples_in", "slice_batch"]


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
