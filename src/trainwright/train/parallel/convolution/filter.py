"""Filter parallelism: each rank has some of a layer's filters, and computes these channels of its output.

Source: Kahira et al., arXiv 2104.09075, section 3.4. Between two such layers a rank keeps its channels only, on which
it does activations, normalisation and pooling; before the next one they are gathered, and backward the gradients of all
ranks' filters are summed where they belong (reduce-scatter: 2 (p - 1) / p of a layer's output instead of 3).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.func import functional_call

from trainwright.train.parallel.collectives import copy, narrow
from trainwright.train.parallel.convolution.halo import Division
from trainwright.train.parallel.convolution.part import Part, whole
from trainwright.train.parallel.layers import NORMS, divided, emptied, is_plain

__all__ = ["FilterNorm", "FilterParallel"]


class FilterParallel(nn.Module):
    """A convolution or linear layer whose filters are divided evenly along `axis` of `mesh`.

    Takes a whole tensor or parts; returns this rank's channels as a `Part`. Parameters are DTensors of the layer's
    shapes and names; all ranks are to begin with equal values.
    """

    _layer: Any

    def __init__(self, layer: Any, mesh: DeviceMesh, *, axis: str) -> None:
        super().__init__()
        self.weight = divided(layer.weight, mesh, axis, Shard(0))
        self.bias = None if layer.bias is None else divided(layer.bias, mesh, axis, Shard(0))
        self._group = mesh.get_group(axis)
        self._features = isinstance(layer, nn.Linear)
        # The layer is no child module: its parameters are this module's.
        self.__dict__["_layer"] = emptied(layer)

    @staticmethod
    def fits(layer: Any, world: int) -> bool:
        """Whether a layer is of a kind and size that can be divided so."""
        return is_plain(layer) and layer.weight.shape[0] % world == 0 and getattr(layer, "groups", 1) == 1

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 -- torch's name
        """Return this rank's channels of the output."""
        x = whole(input, scatter=True) if isinstance(input, Part) else copy(input, self._group)
        local_tensors = {name: tensor.to_local() for name, tensor in self.named_parameters()}  # type: ignore[attr-defined]  # DTensors
        y = functional_call(self._layer, local_tensors, (x,))
        dim, world = y.ndim - 1 if self._features else 1, dist.get_world_size(self._group)
        bounds = tuple(rank * y.shape[dim] for rank in range(world + 1))
        return Part.of(y, Division(dim=dim, bounds=bounds, group=self._group, spatial=False))


class FilterNorm(nn.Module):
    """Batch normalisation of this rank's channels: its parameters and statistics are divided like the filters."""

    _layer: Any

    def __init__(self, layer: Any, mesh: DeviceMesh, *, axis: str) -> None:
        super().__init__()
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, divided(parameter, mesh, axis, Shard(0)))
        for name, buffer in layer.named_buffers():
            self.register_buffer(name, divided(buffer, mesh, axis, Shard(0)) if buffer.ndim else buffer)
        self._group = mesh.get_group(axis)
        self._channels: int = layer.num_features
        self.__dict__["_layer"] = emptied(layer)

    @staticmethod
    def fits(layer: Any, world: int) -> bool:
        """Whether a layer is of a kind and size that can be divided so."""
        return is_plain(layer, NORMS) and layer.num_features % world == 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Return this rank's channels, normalised."""
        world = dist.get_world_size(self._group)
        bounds = tuple(rank * self._channels // world for rank in range(world + 1))
        division = Division(dim=1, bounds=bounds, group=self._group, spatial=False)
        if isinstance(input, Part) and input.division == division:
            local = input.local
        else:
            local = narrow(whole(input), self._group, dim=1, sizes=division.sizes)
        tensors: dict[str, Any] = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        local_tensors = {
            name: tensor.to_local() if hasattr(tensor, "to_local") else tensor for name, tensor in tensors.items()
        }
        self._layer.train(self.training)
        return Part.of(functional_call(self._layer, local_tensors, (local,)), division)
