"""Synchronised batch normalisation by the statistics of all ranks, on parts and on whole tensors, on any device.

Ioffe and Szegedy, arXiv 1502.03167. Sums are taken around the running mean, which all ranks have, so that their
difference does not cancel.
"""

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.collectives import sum_over_ranks as total_of
from trainwright.train.parallel.convolution.part import Part, unshard

__all__ = ["SynchronisedNorm", "learns_statistics"]


def learns_statistics(layer: nn.Module) -> bool:
    """Whether a layer normalises by the statistics of its batch: torch's batch norms, and any with running statistics.

    `nn.SyncBatchNorm` takes those of all ranks by itself, instance norms those of each sample.
    """
    if isinstance(layer, nn.SyncBatchNorm | _InstanceNorm):
        return False
    return isinstance(layer, _BatchNorm) or "running_mean" in layer._buffers  # noqa: SLF001


class SynchronisedNorm:
    """The forward pass of a batch norm whose batch is that of all ranks of `group`: an all-reduce of 2 C sums each way.

    `layer.forward = SynchronisedNorm(layer, group)`: the layer keeps its class and all that its class does; only the
    call of `torch.nn.functional.batch_norm` that it makes in training is taken over. Every rank has as many samples as
    the others; rows may differ. Of whole tensors `copies` ranks have the same. Raises `UnsupportedPlan` in training if
    the layer makes no such call: then its statistics are those of this rank.
    """

    def __init__(self, layer: nn.Module, group: Any, *, copies: int = 1) -> None:
        self._layer, self._forward = layer, layer.forward
        self._group, self._copies = group, copies

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the layer returns."""
        if not self._layer.training:
            return self._forward(*args, **kwargs)
        with _ReplacedNorms(self._group, self._copies) as taken:
            found = self._forward(*args, **kwargs)
        if not taken.calls:
            raise UnsupportedPlan.of(
                "sync_bn=True",
                f"{type(self._layer).__name__} normalises without torch.nn.functional.batch_norm, so that its "
                "statistics would be those of each rank alone; allowed: a layer that calls it, or sync_bn=False",
            )
        return found


class _ReplacedNorms(TorchFunctionMode):
    """Normalises by the statistics of all ranks where `batch_norm` is called for those of the batch."""

    def __init__(self, group: Any, copies: int) -> None:
        super().__init__()
        self._group, self._copies = group, copies
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is not functional.batch_norm:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        # Only calls that take the statistics of the batch are taken over; evaluation is torch's.
        call = _CALL.bind(*args, **(kwargs or {}))
        call.apply_defaults()
        return self._normalised(**call.arguments) if call.arguments["training"] else func(*args, **(kwargs or {}))

    def _normalised(  # noqa: PLR0917 -- torch's signature
        self,
        input: torch.Tensor,  # noqa: A002 -- torch's name
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        training: bool,  # noqa: ARG002
        momentum: float,
        eps: float,
    ) -> torch.Tensor:
        """Return the normalised input, in parts if it came in parts."""
        spatial = isinstance(input, Part) and input.division.spatial
        x = input.local if isinstance(input, Part) and spatial else unshard(input)
        # The mean counts all values; the unbiased variance counts those that are different ones.
        values, different = self._counts(input)
        mean, variance = self._statistics(x, values, running_mean)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                unbiased = variance * (different / max(1.0, different - 1))
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        # One multiplication and one addition an element, as torch's own kernel.
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        scale = (variance + eps).rsqrt()
        scale = scale if weight is None else scale * weight
        shift = -mean * scale
        shift = shift if bias is None else shift + bias
        # Autocast may have made x narrower.
        done = (x * scale.view(shape) + shift.view(shape)).to(x.dtype)
        return Part.of(done, input.division) if isinstance(input, Part) and spatial else done

    def _counts(self, batch_input: torch.Tensor) -> tuple[float, float]:
        """Return how many values of a channel all ranks have, and how many of them are different ones.

        `batch_input.shape` is that of the whole tensor.
        """
        values, ranks = batch_input.numel() / batch_input.shape[1], dist.get_world_size(self._group)
        if isinstance(batch_input, Part) and batch_input.division.spatial:
            # Parts of one tensor lie on `world` ranks: the group has ranks / world different tensors.
            different = values * (ranks // len(batch_input.division.sizes))
            return different, different
        return values * ranks, values * ranks / self._copies

    def _statistics(
        self, x: torch.Tensor, values: float, running_mean: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance of each channel over all ranks, in at least single precision."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        dims = [dim for dim in range(x.ndim) if dim != 1]
        if running_mean is None:
            center = total_of(x.detach().sum(dims), self._group) / values
        else:
            center = running_mean.detach().to(x.dtype, copy=True)
        # Sums are taken around the running mean: sums of squares around zero would cancel.
        moved = x - center.view(1, -1, *(1 for _ in x.shape[2:]))
        sums = total_of(torch.cat([moved.sum(dims), moved.square().sum(dims)]), self._group)
        # Around any c the variance is E[(x - c)^2] - E[x - c]^2, which rounding may bring below 0.
        first, second = (sums / values).chunk(2)
        return first + center, (second - first.square()).clamp_min(0)


_CALL = inspect.signature(functional.batch_norm)
