"""Division: how a tensor is divided over the ranks of a group, and whether a tensor is divided at all."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch.distributed as dist

from trainwright.train.parallel.convolution.halo import Bounds

__all__ = ["Division", "is_divided"]


@dataclass(frozen=True, kw_only=True)
class Division:
    """How a tensor is divided: along `dim`, rank r of `group` holding bounds[r] to bounds[r + 1]."""

    dim: int
    bounds: Bounds
    group: dist.ProcessGroup
    spatial: bool
    """Whether `dim` is a size of an image or a volume; else it is its channels, of which the gradients are whole."""

    @property
    def size(self) -> int:
        """Length of the whole tensor along `dim`."""
        return self.bounds[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of all parts."""
        return tuple(stop - start for start, stop in pairwise(self.bounds))

    @property
    def world(self) -> int:
        """How many ranks have a part."""
        return len(self.bounds) - 1

    @property
    def bounds_of_rank(self) -> tuple[int, int]:
        """Begin and end of this rank's part."""
        rank = dist.get_rank(self.group)
        return self.bounds[rank], self.bounds[rank + 1]


def is_divided(tensor: Any) -> bool:
    """Return whether a value is a `Part`. Operations ask here, since the class of parts calls them."""
    return isinstance(getattr(tensor, "division", None), Division)
