"""Splits batches into micro-batches, accumulates gradients over them, and moves batches to a device."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trainwright.errors import TrialError

__all__ = ["place_batch", "samples_in", "slice_batch", "train_parts"]


def samples_in(batch: Any) -> int:
    """Return how many samples a batch has. Raises `TrialError` if its parts differ, or if it has no such parts."""
    import torch

    from trainwright.train.parallel.recompute.trees import leaves_of

    leaves = leaves_of(batch)
    odd = next((leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)), None if leaves else batch)
    if odd is not None:
        raise TrialError(
            f"a batch of {type(odd).__name__} cannot be cut into parts; allowed: tensors in lists and dicts"
        )
    if any(leaf.ndim == 0 for leaf in leaves):
        raise TrialError("a batch of one number cannot be cut; allowed: tensors whose first axis is the samples")
    counts = {len(leaf) for leaf in leaves}
    if len(counts) > 1:
        raise TrialError(f"a batch whose tensors have {sorted(counts)} samples cannot be cut; give them all as many")
    return counts.pop()


def slice_batch(batch: Any, size: int) -> list[Any]:
    """Return the parts of a batch, of `size` samples each; the last may have fewer."""
    from trainwright.train.parallel.recompute.trees import flatten_tree, unflatten_tree

    leaves, spec = flatten_tree(batch)
    return [unflatten_tree(row, spec) for row in zip(*(leaf.split(size) for leaf in leaves), strict=True)]


def train_parts(
    model: Any,
    loss: Callable[[Any, Any], Any],
    parts: Sequence[tuple[float, Any]],
    *,
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
    expect: Callable[[Any], None] = lambda _: None,
    after_first: Callable[[], None] | None = None,
) -> Any:
    """Accumulate gradients over a batch's micro-batches, each times its weight; return their summed loss, detached.

    All but the last are done in the context `alone`. `expect` is told each part before its loss is computed, and None
    when it is; `after_first` is called when the first part's gradient is there.
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
        if number == 1 and after_first is not None:
            after_first()
        total = value.detach() if weight == 1.0 else total + value.detach()
    return total


def place_batch(batch: Any, device: str) -> Any:
    """Return a batch with its tensors on `device`, and all else that can be moved there by `to`."""
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    from trainwright.train.parallel.recompute.trees import map_only

    return map_only(object, lambda leaf: leaf.to(device, non_blocking=True) if hasattr(leaf, "to") else leaf, batch)
