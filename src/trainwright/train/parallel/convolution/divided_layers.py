"""Filter, channel and spatial parallelism: divides a convolution's filters, input channels or rows over ranks.

Sources: Kahira et al., arXiv 2104.09075, sections 3.2 to 3.5; spatial also Dryden et al., arXiv 1903.06681. Between
layers that divide filters a rank keeps its channels only, on which it does activations, normalisation and pooling;
before the next one they are gathered, and backward the gradients of all ranks' filters are summed where they belong
(reduce-scatter: 2 (p - 1) / p of a layer's output instead of 3). What layers of divided input channels compute is
summed (all-reduce); backward, each rank has the gradient of its channels, and they are gathered.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.func import functional_call

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.blocks import LAYERS, NORMS, divided, emptied, is_plain
from trainwright.train.parallel.collectives import all_reduce, copy, take_part
from trainwright.train.parallel.convolution.halo import Division, even_bounds
from trainwright.train.parallel.convolution.part import Part, unshard, unshard_all

__all__ = ["ChannelParallel", "FilterNorm", "FilterParallel", "SpatialParallel"]

# The dimension of images and volumes that is divided: height, or depth.
_ROWS = 2


class _DividedLayer(nn.Module):
    """A layer whose tensors are divided evenly along `axis` of `mesh`, those that have a dimension `dim`.

    They are DTensors of the layer's shapes and names; all ranks are to begin with equal values.
    """

    _layer: Any
    dim = 0
    kinds: tuple[type[nn.Module], ...] = LAYERS

    def __init__(self, layer: Any, mesh: DeviceMesh, *, axis: str) -> None:
        super().__init__()
        for held, register in ((layer._parameters, self.register_parameter), (layer._buffers, self.register_buffer)):  # noqa: SLF001  those that are None too
            for name, tensor in held.items():
                divides = tensor is not None and tensor.ndim > self.dim
                register(name, divided(tensor, mesh, Shard(self.dim), axis) if divides else tensor)
        self._group = mesh.get_group(axis)
        self._world = dist.get_world_size(self._group)
        self._features = isinstance(layer, nn.Linear)
        # The layer is no child module: its parameters are this module's.
        self.__dict__["_layer"] = emptied(layer)

    @classmethod
    def fits(cls, layer: Any, world: int) -> bool:
        """Whether a layer is of a kind and size that can be divided so."""
        if not is_plain(layer, cls.kinds) or getattr(layer, "groups", 1) != 1:
            return False
        size = layer.num_features if isinstance(layer, NORMS) else layer.weight.shape[cls.dim]
        return bool(size % world == 0)

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the layer makes of a plain tensor with this rank's parts of its own."""
        tensors: dict[str, Any] = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        parts = {name: tensor.to_local() if hasattr(tensor, "to_local") else tensor for name, tensor in tensors.items()}
        self._layer.train(self.training)
        return functional_call(self._layer, parts, (x,))  # type: ignore[no-any-return]

    def _channels(self, channels: int, dim: int = 1) -> Division:
        """Return the even division of channels over the ranks."""
        return Division(dim=dim, bounds=even_bounds(channels, self._world), group=self._group, spatial=False)


class FilterParallel(_DividedLayer):
    """A convolution or linear layer whose filters are divided: it makes this rank's `Part` of the output."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 -- torch's name
        """Return this rank's channels of the output."""
        y = self._compute(unshard(input, scatter=True) if isinstance(input, Part) else copy(input, self._group))
        dim = y.ndim - 1 if self._features else 1
        return Part.of(y, self._channels(self._world * y.shape[dim], dim))


class FilterNorm(_DividedLayer):
    """Batch normalisation of this rank's channels: its parameters and statistics are divided like the filters."""

    kinds = NORMS

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Return this rank's channels, normalised."""
        division = self._channels(self._layer.num_features)
        if isinstance(input, Part) and input.division == division:
            local = input.local
        else:
            local = take_part(unshard(input), self._group, dim=1, sizes=division.sizes)
        return Part.of(self._compute(local), division)


class ChannelParallel(_DividedLayer):
    """A convolution or linear layer whose input channels are divided, the bias on every rank; tensors are whole."""

    weight: Any  # a DTensor
    dim = 1

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Return the whole output."""
        x = unshard(input)
        dim = x.ndim - 1 if self._features else 1
        local = take_part(x, self._group, dim=dim, sizes=self._channels(x.shape[dim]).sizes)
        bias, self._layer.bias = self._parameters["bias"], None
        y = all_reduce(functional_call(self._layer, {"weight": self.weight.to_local()}, (local,)), self._group)
        if bias is None:
            return y
        return y + (bias if self._features else bias.view(-1, *(1 for _ in y.shape[2:])))


class SpatialParallel(nn.Module):
    """Any model of convolutions on whole batches, of which each rank of `group` works on some rows.

    Every rank is given the same batch and takes its rows: the first dimension behind the channels (height, or depth)
    of each floating-point tensor of at least four dimensions. What follows the convolutions is done by
    all on the gathered tensor, and so is what `Part` knows nothing of. The result is whole.

    Gradients are those of the sum over the ranks' losses: their mean over all ranks, as DDP takes it, is the gradient.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.module = module
        self._group = group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns, whole."""
        arguments = [self._divided(arg) for arg in args]
        named = {name: self._divided(arg) for name, arg in kwargs.items()}
        if not any(isinstance(arg, Part) for arg in (*arguments, *named.values())):
            raise UnsupportedPlan.of(
                "spatial", "no argument is a batch of images or volumes, such as (batch, 3, 64, 64)"
            )
        return unshard_all(self.module(*arguments, **named))

    def _divided(self, arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor) or not arg.is_floating_point() or arg.ndim < 4:
            return arg
        size, world = arg.shape[_ROWS], dist.get_world_size(self._group)
        if size < world:
            raise UnsupportedPlan.of("spatial", f"{size} rows cannot be divided by {world} ranks")
        division = Division(dim=_ROWS, bounds=even_bounds(size, world), group=self._group, spatial=True)
        return Part.of(take_part(arg, self._group, dim=_ROWS, sizes=division.sizes), division)
