"""Seconds of single operations, each run alone on tensors like those recorded."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from trainwright.cluster.calibration.timing import Clock, fastest, wall_clock
from trainwright.errors import ProfileError
from trainwright.model.trace.recorder import TensorShape, TracedOperation

__all__ = ["time_operations"]


def time_operations(
    operations: Sequence[TracedOperation],
    places: Sequence[int],
    *,
    device: torch.device,
    warmup: int = 3,
    repeats: int = 10,
    clock: Clock = wall_clock,
) -> tuple[dict[int, float], list[str]]:
    """Time operations on tensors like those recorded; those of equal arguments once. Views take no time.

    Returns seconds by place, and the names of operations that could not be run alone.
    """
    known: dict[Any, float | None] = {}
    seconds: dict[int, float] = {}
    failed: set[str] = set()
    for place in places:
        operation = operations[place]
        if operation.is_view:
            continue
        # Equal operations on equal shapes take equal time: each is measured once.
        key = (operation.func, repr(operation.arguments), repr(operation.keywords))
        if key not in known:
            known[key] = _time_alone(operation, device, warmup, repeats, clock)
        found = known[key]
        if found is None:
            failed.add(str(operation.func))
        else:
            seconds[place] = found
    return seconds, sorted(failed)


def _time_alone(
    operation: TracedOperation, device: torch.device, warmup: int, repeats: int, clock: Clock
) -> float | None:
    with torch.no_grad():
        try:
            arguments, keywords = tree_map(
                lambda leaf: _make_tensor(leaf, device) if isinstance(leaf, TensorShape) else leaf,
                (operation.arguments, operation.keywords),
            )
            operation.func(*arguments, **keywords)
        except (RuntimeError, TypeError, ValueError, IndexError):  # it needs values that made-up tensors do not have
            return None
        return fastest(
            lambda: operation.func(*arguments, **keywords),
            warmup=warmup,
            repeats=repeats,
            clock=clock,
            error=ProfileError,
        )


def _make_tensor(shaped: TensorShape, device: torch.device) -> torch.Tensor:
    """Return a tensor of a shape, with numbers between 0.5 and 1 (no zeros, infinities or denormals), or zeros."""
    # The smallest flat storage in which all strides fit.
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shaped.shape, shaped.stride, strict=True))
    flat = torch.empty(max(0, extent), dtype=shaped.dtype, device=device)
    if shaped.dtype.is_floating_point:
        flat.uniform_(0.5, 1.0)
    else:
        flat.zero_()  # a valid index everywhere
    return flat.as_strided(shaped.shape, shaped.stride)
