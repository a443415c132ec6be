"""Layers whose parameters are divided over ranks: which they are, and how a parameter becomes this rank's part."""

import copy
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from trainwright.train.parallel.recompute.tracing import has_hooks

__all__ = ["LAYERS", "NORMS", "divided", "emptied", "is_plain", "marked", "replace_layers"]

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def is_plain(layer: nn.Module, kinds: tuple[type[nn.Module], ...] = LAYERS) -> bool:
    """Whether a layer does what torch's layer of one of these kinds does, and nothing else.

    A forward pass of its own, hooks, parametrisations and weight norm may need all of the weight or of the output,
    which no rank has; hooks of a parameter are lost with it.
    """
    kind = next((kind for kind in kinds if isinstance(layer, kind)), None)
    if kind is None or has_hooks(layer) or any(marked(parameter) for parameter in layer.parameters()):
        return False
    if any(getattr(type(layer), name, None) is not getattr(kind, name, None) for name in _FORWARD):
        return False
    names = {*layer._parameters, *layer._buffers}  # noqa: SLF001
    return not any(name in vars(layer) for name in _FORWARD) and bool(names & _WEIGHTS) and names <= _HELD


def marked(parameter: torch.Tensor) -> bool:
    """Whether a parameter has hooks, which what is put in its place would not have."""
    return any(getattr(parameter, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))


_FORWARD = ("__call__", "forward", "_conv_forward", "_check_input_dim")
_WEIGHTS = {"weight", "in_proj_weight"}
_STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}
_HELD = _WEIGHTS | _STATISTICS | {"bias", "in_proj_bias", *("q_proj_weight", "k_proj_weight", "v_proj_weight")}


def divided(tensor: torch.Tensor, mesh: DeviceMesh, axis: str, placement: Shard) -> Any:
    """Return a DTensor with this rank's part of a tensor that all ranks hold: placed on `axis`, equal on the others."""
    names = mesh.mesh_dim_names or ()
    rank, world = mesh.get_local_rank(axis), mesh.size(names.index(axis))
    local = tensor.detach().chunk(world, placement.dim)[rank].clone(memory_format=torch.contiguous_format)
    placements: list[Any] = [placement if name == axis else Replicate() for name in names]
    found = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.contiguous().stride()
    )
    return nn.Parameter(found, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else found


def emptied(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer without the memory of its tensors, to be called with others in their place."""
    return copy.deepcopy(layer).to("meta")


def replace_layers(model: nn.Module, change: "dict[nn.Module, nn.Module]") -> nn.Module:
    """Put new layers where old ones were, wherever and however often a model holds them; return the model."""
    if model in change:
        return change[model]
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if child in change:
                setattr(parent, name, change[child])
    return model
