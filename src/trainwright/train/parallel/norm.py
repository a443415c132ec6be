"""Batch normalisation by the statistics of all ranks, on parts and on whole tensors, on any device.

Ioffe and Szegedy, arXiv 1502.03167. Sums are taken around the running mean, which all ranks have, so that their
difference does not cancel.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainwright.train.parallel.exchange import total as total_of
from trainwright.train.parallel.layers import NORMS
from trainwright.train.parallel.part import Part, whole

__all__ = ["SynchronisedNorm"]


class SynchronisedNorm(nn.Module):
    """A batch normalisation whose batch is that of all ranks of `group`: an all-reduce of 2 C sums each way.

    Parameters, statistics and their names are the layer's own. Every rank has as many samples as the others; rows may
    differ. Of whole tensors `copies` ranks have the same.
    """

    weight: Any
    bias: Any
    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, layer: Any, group: dist.ProcessGroup, *, copies: int = 1) -> None:
        super().__init__()
        self.register_parameter("weight", layer.weight)  # None without affine
        self.register_parameter("bias", layer.bias)
        for name, each in layer.named_buffers():
            self.register_buffer(name, each)
        self._eps, self._momentum = layer.eps, layer.momentum
        self._group, self._copies = group, copies

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        """Whether a layer is of this kind, and learns statistics."""
        return isinstance(layer, NORMS) and bool(layer.track_running_stats)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 -- torch's name
        """Return the normalised input, in parts if it came in parts."""
        spatial = isinstance(input, Part) and input.division.spatial
        x = input.local if isinstance(input, Part) and spatial else whole(input)
        mean, variance = (
            self._statistics(x, *self._counts(input)) if self.training else (self.running_mean, self.running_var)
        )
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        scale = (variance + self._eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shift = -mean * scale
        shift = shift if self.bias is None else shift + self.bias
        done = x * scale.view(shape) + shift.view(shape)
        return Part.of(done, input.division) if isinstance(input, Part) and spatial else done

    def _counts(self, given: torch.Tensor) -> tuple[float, float]:
        """Return how many values of a channel all ranks have, and how many of them are different ones.

        `given.shape` is that of the whole tensor.
        """
        values, ranks = given.numel() / given.shape[1], dist.get_world_size(self._group)
        if isinstance(given, Part) and given.division.spatial:
            different = values * (ranks // given.division.world)
            return different, different
        return values * ranks, values * ranks / self._copies

    def _statistics(self, x: torch.Tensor, total: float, different: float) -> tuple[torch.Tensor, torch.Tensor]:
        dims = [dim for dim in range(x.ndim) if dim != 1]
        around = self.running_mean.detach().clone()
        moved = x - around.view(1, -1, *(1 for _ in x.shape[2:]))
        sums = total_of(torch.cat([moved.sum(dims), moved.square().sum(dims)]), self._group)
        first, second = (sums / total).chunk(2)
        mean, variance = first + around, (second - first.square()).clamp_min(0)
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            rate = 1 / float(self.num_batches_tracked) if self._momentum is None else self._momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
            self.running_var.lerp_((variance * (different / max(1.0, different - 1))).to(self.running_var.dtype), rate)
        return mean, variance
