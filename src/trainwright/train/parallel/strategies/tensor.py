"""Tensor parallelism of transformer blocks: by a model's own plan, or by torch's DTensor.

Source: Shoeybi et al., arXiv 1909.08053, section 3. A model with a plan of its own, as those of transformers, counts
heads by what its layers return, so that between them each rank has plain tensors of its own heads. Others keep the
shapes of the whole there: within attention and feed-forward part tensors are DTensors, outside they are plain.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.blocks import blocks_of, divided, is_plain
from trainwright.train.parallel.collectives import all_gather, all_reduce, copy, take_part
from trainwright.train.parallel.recompute.trees import local_tensor
from trainwright.train.parallel.strategies.expert import are_experts, divide_experts
from trainwright.train.parallel.strategies.tensor_parts import (
    AmongParts,
    FusedColumns,
    MultiheadParallel,
    RowOfParts,
    refuse_uneven,
)
from trainwright.train.parallel.strategies.tensor_roles import TensorGroup, is_transposed, outputs_of, tensor_groups_of

__all__ = ["divide_blocks"]


def divide_blocks(model: nn.Module, mesh: DeviceMesh, *, experts: DeviceMesh | None = None) -> list[nn.Parameter]:
    """Divide the linear layers of a model's transformer blocks over a mesh of one axis, and whole experts.

    These are divided over a mesh of their own if it is given; their parameters are returned. Raises `UnsupportedPlan`
    if there is nothing to divide, or what cannot be divided.
    """
    mixed = any(map(are_experts, model.modules()))
    # Of several names each.
    tied = dict(model.named_parameters(remove_duplicate=False))
    for name, _ in model.named_parameters():
        del tied[name]
    parts = divide_experts(model, experts or mesh) if mixed else []
    if plan := _own_plan(model):
        _divide_by_plan(model, plan, mesh)
    else:
        _divide_by_layers(model, mesh, needed=not mixed)
    # Names of one module have one parameter still.
    now = dict(model.named_parameters())
    broken = next((name for name in tied if name in now), None)
    if broken is not None:
        raise UnsupportedPlan.of("tensor", f"{broken} is another layer's parameter too; allowed: layers of their own")
    return parts


def _divide_by_layers(model: nn.Module, mesh: DeviceMesh, *, needed: bool) -> None:
    found = [(block, groups) for block in dict.fromkeys(blocks_of(model)) if (groups := tensor_groups_of(block))]
    if needed and not found:
        raise UnsupportedPlan.of(
            "tensor",
            f"{type(model).__name__} has no list of transformer blocks with linear layers that can be told apart; see "
            "the guide on parallel plans for how they are recognised",
        )
    for block, _ in found:
        _divide_stacked(block, mesh)
    for block, groups in found:
        for group in groups:
            # What several blocks have is divided once.
            if not isinstance(getattr(group.row, "weight", None), DTensor):
                _check_divisible(group, mesh)
                _divide_group(group, mesh)
        vars(block)["forward"] = AmongParts(block, mesh)


def _divide_stacked(block: nn.Module, mesh: DeviceMesh) -> None:
    """Divide whole experts with stacked weights, [experts, ...], which are called in another way than other experts."""
    for path, module in block.named_modules():
        own, count = dict(module.named_parameters(recurse=False)), getattr(module, "num_experts", None)
        if are_experts(module) or not any(each.ndim == 3 for each in own.values()):
            continue
        if isinstance(count, int) and all(each.shape[0] == count for each in own.values()):
            refuse_uneven(count, f"experts of {path}", mesh)
            for name, parameter in own.items():
                setattr(module, name, divided(parameter, mesh, Shard(0), "tensor"))


def _check_divisible(group: TensorGroup, mesh: DeviceMesh) -> None:
    heads = next((found for item in _HEADS if isinstance(found := getattr(group.parent, item, None), int)), 0)
    refuse_uneven(heads, "attention heads", mesh)
    for name, layer in group.columns.items():
        refuse_uneven(outputs_of(layer), f"outputs of {name}", mesh)


_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead")


def _divide_group(group: TensorGroup, mesh: DeviceMesh) -> None:
    """Divide column-parallel layers, the row-parallel one behind them, and what lies between."""
    parent = group.parent
    _refuse_own(group)
    if group.attention is not None:
        setattr(parent, group.attention, MultiheadParallel(getattr(parent, group.attention), mesh))
        return
    for layer in group.columns.values():
        if group.fused:
            vars(layer)["forward"] = FusedColumns(layer, mesh)
        else:
            _divide_parameters(layer, mesh, outputs=True)
    # Columns divide their outputs, the row sums over its divided input: one exchange for both.
    _divide_parameters(group.row, mesh, outputs=False)
    vars(group.row)["forward"] = RowOfParts(group.row, mesh)


def _divide_parameters(layer: Any, mesh: DeviceMesh, *, outputs: bool) -> None:
    """Divide a linear layer; the bias of one that divides its inputs stays whole."""
    dimension = int(is_transposed(layer)) if outputs else int(not is_transposed(layer))
    layer.weight = divided(layer.weight, mesh, Shard(dimension), "tensor")
    if outputs and layer.bias is not None:
        layer.bias = divided(layer.bias, mesh, Shard(0), "tensor")


def _refuse_own(group: TensorGroup) -> None:
    """Refuse layers that others are put in the place of, if they do more than torch's; and parametrised ones."""
    parent = group.parent
    named = group.columns | {"the row of its features": group.row}
    if group.attention is not None:
        named = {group.attention: getattr(parent, group.attention)}
    for name, layer in named.items():
        if group.attention is not None:
            fits = is_plain(layer, (nn.MultiheadAttention,)) and is_plain(layer.out_proj)
        elif group.fused and layer is not group.row:
            fits = is_plain(layer, (type(layer),) if is_transposed(layer) else (nn.Linear,))
        else:
            fits = "weight" in layer._parameters  # noqa: SLF001
        if not fits:
            raise UnsupportedPlan.of(
                "tensor",
                f"{type(parent).__name__}.{name} has a forward pass, hooks or a parametrisation of its own; allowed: "
                "torch's layer as it is, or a plan without tensor parallelism",
            )


_WHOLE_GRADIENT = "replicated_with_grad_allreduce"
_GATHERED, _SPLIT = "colwise_gather_output", "rowwise_split_input"
_LATENT = "mla_kv_a_proj"
_STYLES = {"colwise": 0, "rowwise": 1, _GATHERED: 0, _SPLIT: 1, _WHOLE_GRADIENT: -1, _LATENT: -1}
"""The dimension of the weight that each divides; -1: none."""


def _own_plan(model: nn.Module) -> dict[str, str]:
    """Return what a model's own plan says of the layers of its blocks, {} without one of known styles.

    Other layers stay whole. What it says of experts in stacked weights is left out: they are divided whole.
    """
    found = getattr(model, "tp_plan", None)
    plan = {path: style for path, style in found.items() if "*" in path} if isinstance(found, Mapping) else {}
    experts = {path: module for path, module in model.named_modules() if are_experts(module)}
    held = {f"{path}.{name}" for path, module in experts.items() for name, _ in module.named_parameters()} | {*experts}
    plan = {path: style for path, style in plan.items() if not any(map(_pattern(path).fullmatch, held))}
    return plan if _STYLES.keys() >= set(plan.values()) else {}


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\*", "[^.]+"))


def _divide_by_plan(model: nn.Module, plan: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Divide layers as their model's plan says. Raises `UnsupportedPlan` for what cannot be divided so."""
    patterns = {_pattern(path): style for path, style in plan.items()}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        style = next((style for pattern, style in patterns.items() if pattern.fullmatch(path)), None)
        if style == _WHOLE_GRADIENT:
            for parameter in module.parameters():
                parameter.register_hook(_summed_over(mesh.get_group()))
        elif style == _LATENT and isinstance(module, nn.Linear) and is_plain(module):
            vars(module)["forward"] = _Latent(module, mesh.get_group(), modules[path.rpartition(".")[0]])
        elif style is not None:
            _divide_layer(path, module, modules[path.rpartition(".")[0]], style, mesh)


def _divide_layer(path: str, layer: nn.Module, parent: nn.Module, style: str, mesh: DeviceMesh) -> None:
    if not isinstance(layer, nn.Linear) or not is_plain(layer):
        raise UnsupportedPlan.of("tensor", f"{path} is no plain nn.Linear; allowed: torch's layer as it is")
    dimension = _STYLES[style]
    # Of attention, whole heads.
    width = getattr(parent, "head_dim", 1)
    units, rest = divmod(layer.weight.shape[dimension], width if isinstance(width, int) else 1)
    refuse_uneven(1 if rest else units, f"{'heads' if width != 1 else 'features'} of {path}", mesh)
    _divide_parameters(layer, mesh, outputs=dimension == 0)
    forward = {"colwise": _Column, "rowwise": _Row, _GATHERED: _GatheredColumn, _SPLIT: _SplitRow}
    vars(layer)["forward"] = forward[style](layer, mesh.get_group())


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


class _GatheredColumn(_Column):
    """A layer that divides its outputs between ranks that all want the whole, as a norm over all heads does."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        part = super().__call__(x)
        sizes = (part.shape[-1],) * dist.get_world_size(self._group)
        # What follows is the same on every rank, and so is its gradient.
        return all_gather(part, self._group, dim=-1, sizes=sizes, scatter=False)


class _SplitRow(_Row):
    """A layer that divides inputs which every rank has whole."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        world = dist.get_world_size(self._group)
        return super().__call__(take_part(x, self._group, dim=-1, sizes=(x.shape[-1] // world,) * world))


class _Latent:
    """Latent attention's compressed keys and values: its last features are a key that the heads of all ranks share."""

    def __init__(self, layer: nn.Linear, group: dist.ProcessGroup, attention: Any) -> None:
        self._layer, self._group, self._shared = layer, group, int(attention.qk_rope_head_dim)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        found = functional.linear(x, self._layer.weight, self._layer.bias)
        # The gradient of the others is summed where a layer divides its outputs.
        return torch.cat([found[..., : -self._shared], copy(found[..., -self._shared :], self._group)], dim=-1)


def _summed_over(group: dist.ProcessGroup) -> Callable[[torch.Tensor], torch.Tensor]:
    def total(gradient: torch.Tensor) -> torch.Tensor:
        found = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(found, group=group)
        return found

    return total
