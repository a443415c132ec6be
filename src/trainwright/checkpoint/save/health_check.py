"""The health check of a snapshot before it is published: tensors with values that are not finite.

A checkpoint of a network that has diverged would take the place of the last one that is worth resuming from.
"""

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from trainwright.checkpoint.save.shard_file import ShardFile, TensorPlace

if TYPE_CHECKING:
    import torch

__all__ = ["find_nonfinite"]

_PIECE = 32_768


def find_nonfinite(layout: ShardFile, memory: memoryview, names: Collection[str]) -> list[str]:
    """Return the floating-point tensors among `names` in which a value is NaN or infinite."""
    import torch

    flat = torch.frombuffer(memory, dtype=torch.uint8) if len(memory) else torch.empty(0, dtype=torch.uint8)
    checked = [place for place in layout.places if place.name in names and place.size]
    return [
        place.name for place in checked if getattr(torch, place.dtype).is_floating_point and not _is_finite(flat, place)
    ]


def _is_finite(flat: "torch.Tensor", place: TensorPlace) -> bool:
    """Look at the norm piece by piece: each stays in cache, and is too small for torch to spread over threads."""
    import torch

    values = flat[place.start : place.start + place.size].view(getattr(torch, place.dtype))
    # Eight-bit floats know no arithmetic.
    if values.element_size() == 1:
        values = values.float()
    kind = torch.float64 if values.dtype == torch.float64 else torch.float32
    # One pass in the cache: a norm is finite only if all values are.
    if all(math.isfinite(float(torch.linalg.vector_norm(piece, dtype=kind))) for piece in values.split(_PIECE)):
        return True
    # A norm can be too large for its type where no value is.
    return bool(torch.isfinite(values).all())
