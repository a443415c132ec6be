"""Finds the modules that strategies divide: repeated (transformer) blocks, and layers whose parameters can be sharded.

Blocks are what is gathered at a time, what is run again, between which a sequence is divided, and where a pipeline can
be cut.
"""

import copy
from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.recompute.run_context import has_hooks

__all__ = [
    "LAYERS",
    "NORMS",
    "blocks_of",
    "chain_of",
    "divided",
    "emptied",
    "fsdp_groups_of",
    "is_plain",
    "marked",
    "refuse_hooks",
    "replace_layers",
]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the children with parameters of every list or sequence of modules, the outermost, in order.

    Those of an `nn.Sequential` count if they are themselves made of modules, a sequence among them by its own; a model
    of none is one block, itself left out.
    """
    if isinstance(model, nn.ModuleList):
        return [block for block in model if _weighs(block)]
    if not isinstance(model, nn.Sequential):
        return [block for child in model.children() for block in blocks_of(child)]
    found: list[nn.Module] = []
    for child in model:
        inner = blocks_of(child) if isinstance(child, nn.ModuleList | nn.Sequential) else []
        found += inner or [child] * (_weighs(child) and any(True for _ in child.children()))
    return found


def refuse_hooks(model: nn.Module, strategy: str) -> None:
    """Refuse blocks with hooks where each rank has a part of a sequence, which is all that a hook would see."""
    found = next((block for block in blocks_of(model) if has_hooks(block)), None)
    if found is not None:
        raise UnsupportedPlan.of(
            strategy,
            f"{type(found).__name__} has hooks, which would see a part of each sequence; allowed: hooks of modules "
            "before the first block or after the last",
        )


def fsdp_groups_of(model: nn.Module) -> list[nn.Module]:
    """Return what is gathered at a time: the blocks, or the layers with parameters of the sequences of a model of none.

    Layers that share a parameter with another are left, as all that is in none of them, to the model as a whole.
    """
    found = blocks_of(model)
    if found:
        return found
    sequences = [module for module in model.modules() if isinstance(module, nn.Sequential)]
    layers = dict.fromkeys(layer for sequence in sequences for layer in sequence if _weighs(layer))
    owners = Counter(parameter for layer in layers for parameter in layer.parameters())
    return [layer for layer in layers if all(owners[parameter] == 1 for parameter in layer.parameters())]


def chain_of(model: nn.Module, path: str = "") -> list[tuple[str, nn.Module]]:
    """Return modules that, one after the other, are the model, with their paths: those of nested `nn.Sequential`s."""
    if not isinstance(model, nn.Sequential):
        return [(path, model)]
    return [item for name, child in model.named_children() for item in chain_of(child, f"{path}.{name}".lstrip("."))]


def _weighs(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


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


def divided(tensor: torch.Tensor, mesh: DeviceMesh, placement: Shard, *axes: str) -> Any:
    """Return a DTensor with this rank's part of a tensor that all ranks hold: placed on `axes`, equal on the others."""
    names = mesh.mesh_dim_names or ()
    local = tensor.detach()
    for place, name in enumerate(names):
        if name in axes:
            local = local.chunk(mesh.size(place), placement.dim)[mesh.get_local_rank(name)]
    local = local.clone(memory_format=torch.contiguous_format)
    placements: list[Any] = [placement if name in axes else Replicate() for name in names]
    found = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.contiguous().stride()
    )
    return nn.Parameter(found, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else found


def emptied(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer without the memory of its tensors, to be called with others in their place."""
    memo: dict[int, Any] = {id(each): torch.empty_like(each, device="meta") for each in layer.buffers()}
    for each in layer.parameters():
        memo[id(each)] = nn.Parameter(torch.empty_like(each, device="meta"), each.requires_grad)
    return copy.deepcopy(layer, memo)


def replace_layers(model: nn.Module, change: "dict[nn.Module, nn.Module]") -> nn.Module:
    """Put new layers where old ones were, wherever and however often a model holds them; return the model."""
    if model in change:
        return change[model]
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if child in change:
                setattr(parent, name, change[child])
    return model
