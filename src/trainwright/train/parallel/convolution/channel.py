"""Channel parallelism: each rank has the part of a layer's weights that its channels of the input meet.

Source: Kahira et al., arXiv 2104.09075, section 3.5. What the ranks compute is summed (all-reduce); backward, each has
the gradient of its channels, and they are gathered. Between layers tensors are whole.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.func import functional_call

from trainwright.train.parallel.collectives import narrow, reduce
from trainwright.train.parallel.convolution.part import whole
from trainwright.train.parallel.layers import divided, emptied, is_plain

__all__ = ["ChannelParallel"]


class ChannelParallel(nn.Module):
    """A convolution or linear layer whose input channels are divided evenly along `axis` of `mesh`.

    Takes and returns whole tensors. The weight is a DTensor of the layer's shape and name, the bias on every rank.
    """

    _layer: Any
    weight: Any  # a DTensor
    bias: "torch.Tensor | None"

    def __init__(self, layer: Any, mesh: DeviceMesh, *, axis: str) -> None:
        super().__init__()
        self.weight = divided(layer.weight, mesh, axis, Shard(1))
        self.bias = layer.bias
        self._group = mesh.get_group(axis)
        names = mesh.mesh_dim_names or ()
        world = mesh.size(names.index(axis))
        self._sizes: tuple[int, ...] = (layer.weight.shape[1] // world,) * world
        self._features = isinstance(layer, nn.Linear)
        # The layer is no child module: its parameters are this module's.
        self.__dict__["_layer"] = emptied(layer)
        self._layer.bias = None

    @staticmethod
    def fits(layer: Any, world: int) -> bool:
        """Whether a layer is of a kind and size that can be divided so."""
        return is_plain(layer) and layer.weight.shape[1] % world == 0 and getattr(layer, "groups", 1) == 1

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 -- torch's name
        """Return the whole output."""
        x = whole(input)
        local = narrow(x, self._group, dim=x.ndim - 1 if self._features else 1, sizes=self._sizes)
        weight = self.weight.to_local()
        y = reduce(functional_call(self._layer, {"weight": weight}, (local,)), self._group)
        if self.bias is None:
            return y
        return y + (self.bias if self._features else self.bias.view(-1, *(1 for _ in y.shape[2:])))
