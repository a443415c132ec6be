"""Tensor parallelism by a model's own plan, as transformers gives it: which layers are column-wise, which row-wise.

A model with such a plan counts heads by what its layers return, so that between them each rank has plain tensors of its
own heads. Models without one keep the shapes of the whole there, as DTensors (see `tensor`).
"""

import re
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.nn import functional

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.blocks import divided, is_plain
from trainwright.train.parallel.collectives import all_reduce, copy
from trainwright.train.parallel.recompute.trees import local_tensor

__all__ = ["divide_by_plan", "own_plan"]

_WHOLE_GRADIENT = "replicated_with_grad_allreduce"
_STYLES = {"colwise": 0, "rowwise": 1, _WHOLE_GRADIENT: -1}
"""The dimension of the weight that each divides."""


def own_plan(model: nn.Module) -> dict[str, str]:
    """Return what a model's own plan says of the layers of its blocks, {} without one; other layers stay whole."""
    found = getattr(model, "tp_plan", None)
    return {path: style for path, style in found.items() if "*" in path} if isinstance(found, Mapping) else {}


def divide_by_plan(model: nn.Module, plan: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Divide layers as their model's plan says. Raises `UnsupportedPlan` for what cannot be divided so."""
    patterns = {re.compile(re.escape(path).replace(r"\*", "[^.]+")): style for path, style in plan.items()}
    unknown = next((f"{path} {style!r}" for path, style in plan.items() if style not in _STYLES), None)
    if unknown is not None:
        raise UnsupportedPlan.of(
            "tensor", f"the plan of {type(model).__name__} makes {unknown}; allowed: {', '.join(_STYLES)}"
        )
    modules = dict(model.named_modules())
    for path, module in modules.items():
        style = next((style for pattern, style in patterns.items() if pattern.fullmatch(path)), None)
        if style == _WHOLE_GRADIENT:
            for parameter in module.parameters():
                parameter.register_hook(_summed_over(mesh.get_group()))
        elif style is not None:
            _divide_layer(path, module, modules[path.rpartition(".")[0]], style, mesh)


def _divide_layer(path: str, layer: nn.Module, parent: nn.Module, style: str, mesh: DeviceMesh) -> None:
    if not isinstance(layer, nn.Linear) or not is_plain(layer):
        raise UnsupportedPlan.of("tensor", f"{path} is no plain nn.Linear; allowed: torch's layer as it is")
    dimension, group = _STYLES[style], mesh.get_group()
    # Of attention, whole heads.
    width = getattr(parent, "head_dim", 1)
    units, rest = divmod(layer.weight.shape[dimension], width if isinstance(width, int) else 1)
    if rest or units % mesh.size():
        what = f"{units} heads" if width != 1 else f"{units} features"
        raise UnsupportedPlan.of("tensor", f"the {what} of {path} cannot be divided by {mesh.size()}")
    layer.weight = divided(layer.weight, mesh, "tensor", Shard(dimension))
    if style == "colwise" and layer.bias is not None:
        layer.bias = divided(layer.bias, mesh, "tensor", Shard(0))
    vars(layer)["forward"] = _Column(layer, group) if style == "colwise" else _Row(layer, group)


class _Column:
    """The forward pass of a layer that divides its outputs: each rank finds a part of its input's gradient."""

    def __init__(self, layer: nn.Linear, group: dist.ProcessGroup) -> None:
        self._layer, self._group = layer, group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(copy(x, self._group), local_tensor(self._layer.weight), local_tensor(self._layer.bias))


class _Row(_Column):
    """The forward pass of a layer that divides its inputs: the ranks' terms are summed."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        total = all_reduce(functional.linear(x, local_tensor(self._layer.weight)), self._group)
        return total if self._layer.bias is None else total + self._layer.bias


def _summed_over(group: dist.ProcessGroup) -> Callable[[torch.Tensor], torch.Tensor]:
    def total(gradient: torch.Tensor) -> torch.Tensor:
        found = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(found, group=group)
        return found

    return total
