"""The health check of a snapshot before it is published: values that are not finite, norms that jumped.

A model absorbs many flipped bits unnoticed (Rojas et al., CLUSTER 2021), so a checkpoint should not be the place where
they are kept.
"""

import math
import statistics
from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from trainwright.checkpoint.config import HealthCheck
from trainwright.checkpoint.save.shard_file import ShardFile, TensorPlace

if TYPE_CHECKING:
    import torch

__all__ = ["Norms", "norms_of"]

_PIECE = 32_768
# Of a normal variable, standard deviation over median absolute deviation.
_SPREAD = 1.4826
# Of the median: a norm that hardly moves may move so much.
_LEAST_SPREAD = 1e-3


def norms_of(layout: ShardFile, memory: memoryview, names: Collection[str]) -> dict[str, float]:
    """Return the Euclidean norm of each floating-point tensor among `names`; NaN if a value of it is not finite."""
    import torch

    flat = torch.frombuffer(memory, dtype=torch.uint8) if len(memory) else torch.empty(0, dtype=torch.uint8)
    return {
        place.name: _norm_of(flat, place)
        for place in layout.places
        if place.name in names and place.size and getattr(torch, place.dtype).is_floating_point
    }


def _norm_of(flat: "torch.Tensor", place: TensorPlace) -> float:
    """Return the norm piece by piece: each stays in cache, and is too small for torch to spread over threads."""
    import torch

    values = flat[place.start : place.start + place.size].view(getattr(torch, place.dtype))
    # Eight-bit floats know no arithmetic.
    if values.element_size() == 1:
        values = values.float()
    kind = torch.float64 if values.dtype == torch.float64 else torch.float32
    total = math.fsum(float(torch.linalg.vector_norm(piece, dtype=kind)) ** 2 for piece in values.split(_PIECE))
    if math.isfinite(total):
        return math.sqrt(total)
    # a norm can be too large for its type where no value is
    return float(torch.linalg.vector_norm(values.double())) if bool(torch.isfinite(values).all()) else math.nan


class Norms:
    """The norms of the last saves, and what stands out against them."""

    def __init__(self, settings: HealthCheck) -> None:
        self._settings = settings
        self._seen: dict[str, deque[float]] = {}

    def suspects(self, norms: Mapping[str, float]) -> list[str]:
        """Return the tensors whose norm is too far from its running median, and remember the norms.

        Nothing is suspected before three saves are known.
        """
        found = []
        for name, norm in norms.items():
            seen = self._seen.setdefault(name, deque(maxlen=self._settings.history))
            # With fewer values a deviation means nothing.
            if len(seen) >= 3:
                median = statistics.median(seen)
                # The median absolute deviation, scaled: outliers of the past do not widen it.
                spread = _SPREAD * statistics.median(abs(value - median) for value in seen)
                if abs(norm - median) > self._settings.deviations * max(spread, _LEAST_SPREAD * abs(median)):
                    found.append(name)
            seen.append(norm)
        return found
