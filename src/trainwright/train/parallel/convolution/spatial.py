"""Spatial parallelism: each rank has some rows of every image or volume, and the whole weights.

Source: Dryden et al., arXiv 1903.06681; Kahira et al., arXiv 2104.09075, section 3.2.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.collectives import narrow
from trainwright.train.parallel.convolution.halo import Division, bounds_of
from trainwright.train.parallel.convolution.part import Part, wholes

__all__ = ["SpatialParallel"]


class SpatialParallel(nn.Module):
    """Any model of convolutions on whole batches, of which each rank of `group` works on some rows.

    Every rank is given the same batch and takes its rows: the first dimension behind the channels (height, or depth)
    of each floating-point tensor of at least four dimensions, or of `dim` + 1. What follows the convolutions is done by
    all on the gathered tensor, and so is what `Part` knows nothing of. The result is whole.

    Gradients are those of the sum over the ranks' losses: their mean over all ranks, as DDP takes it, is the gradient.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None, *, dim: int = 2) -> None:
        super().__init__()
        self.module = module
        self._group: Any = group if group is not None else dist.group.WORLD
        self._dim = dim

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, whole."""
        arguments = [self._divided(arg) for arg in args]
        if not any(isinstance(arg, Part) for arg in arguments):
            raise UnsupportedPlan.of(
                "spatial", "no argument is a batch of images or volumes, such as (batch, 3, 64, 64)"
            )
        return wholes(self.module(*arguments, **kwargs))

    def _divided(self, arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor) or not arg.is_floating_point() or arg.ndim < max(4, self._dim + 1):
            return arg
        size, world = arg.shape[self._dim], dist.get_world_size(self._group)
        if size < world:
            raise UnsupportedPlan.of("spatial", f"{size} rows cannot be divided by {world} ranks")
        division = Division(dim=self._dim, bounds=bounds_of(size, world), group=self._group, spatial=True)
        return Part.of(narrow(arg, self._group, dim=self._dim, sizes=division.sizes), division)
