"""Tensor parallelism of transformer blocks: by a model's own plan, or by torch's DTensor.

Source: Shoeybi et al., arXiv 1909.08053, section 3. A model with a plan of its own, as those of transformers, counts
heads by what its layers return, so that between them each rank has plain tensors of its own heads. Others keep the
shapes of the whole there: within attention and feed-forward part tensors are DTensors, outside they are plain.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.blocks import blocks_of, divided, is_plain
from trainwright.train.parallel.collectives import all_gather, all_reduce, copy, take_part
from trainwright.train.parallel.recompute.trees import local_tensor, map_only, without_caches
from trainwright.train.parallel.strategies.expert import are_experts, divide_experts
from trainwright.train.parallel.strategies.tensor_attention import FusedColumns, MultiheadParallel, teach_attention
from trainwright.train.parallel.strategies.tensor_roles import TensorGroup, tensor_groups_of

__all__ = ["divide_blocks"]


def divide_blocks(model: nn.Module, mesh: DeviceMesh, *, experts: DeviceMesh | None = None) -> list[nn.Parameter]:
    """Divide the linear layers of a model's transformer blocks over a mesh of one axis, and whole experts.

    These are divided over a mesh of their own if it is given; their parameters are returned. Raises `UnsupportedPlan`
    if there is nothing to divide, or what cannot be divided.
    """
    mixed = any(map(are_experts, model.modules()))
    parts = divide_experts(model, experts or mesh) if mixed else []
    if plan := _own_plan(model):
        _divide_by_plan(model, plan, mesh)
        return parts
    found = [(block, groups) for block in blocks_of(model) if (groups := tensor_groups_of(block))]
    if not found and not mixed:
        raise UnsupportedPlan.of(
            "tensor",
            f"{type(model).__name__} has no list of transformer blocks with linear layers that can be told apart; see "
            "the guide on parallel plans for how they are recognised",
        )
    for block, groups in found:
        _refuse_experts(block, {group.parent for group in groups if group.alone})
    if mesh.device_type == "cpu":
        teach_attention()
    for _, groups in found:
        for group in groups:
            _check_divisible(group, mesh.size())
            _divide_group(group, mesh)
    return parts


def _refuse_experts(block: nn.Module, of_dtensors: Collection[nn.Module]) -> None:
    """Refuse weights of several experts in one parameter, but for experts that are divided whole."""
    within = {module for parent in of_dtensors for module in parent.modules()}
    for path, module in block.named_modules():
        divides = isinstance(module, nn.Conv1d | nn.ConvTranspose1d) or (are_experts(module) and module not in within)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 3 and not divides:
                whose = f"{path}.{name}".lstrip(".")
                raise UnsupportedPlan.of("tensor", f"{whose} holds experts; allowed: blocks of linear layers")


def _check_divisible(group: TensorGroup, world: int) -> None:
    wrong = [name for name, layer in group.columns.items() if layer.out_features % world]
    heads = next((found for item in _HEADS if isinstance(found := getattr(group.parent, item, None), int)), world)
    if wrong or heads % world:
        what = f"{heads} attention heads" if heads % world else f"the outputs of {wrong[0]}"
        raise UnsupportedPlan.of("tensor", f"{what} cannot be divided by {world}")


_HEADS = ("num_heads", "n_heads", "n_head", "heads", "nhead")


def _divide_group(group: TensorGroup, mesh: DeviceMesh) -> None:
    """Divide column-parallel layers, the row-parallel one behind them, and what lies between."""
    parent = group.parent
    _refuse_own(group)
    if group.attention is not None:
        attention = MultiheadParallel(getattr(parent, group.attention), mesh)
        setattr(parent, group.attention, attention)
        _sum_replicated(attention)
        return
    for name, layer in group.columns.items():
        if group.fused:
            setattr(parent, name, FusedColumns(layer, mesh))
        else:
            parallelize_module(parent, mesh, {name: ColwiseParallel(use_local_output=False)})
    # Columns divide their outputs, the row sums over its divided input: one exchange for both.
    parallelize_module(parent, mesh, {group.row: RowwiseParallel()})
    if group.alone:
        for module in parent.modules():
            _equal_everywhere(module, mesh)
        parent.register_forward_pre_hook(_entering(mesh), with_kwargs=True)
    _sum_replicated(parent)


def _refuse_own(group: TensorGroup) -> None:
    """Refuse layers that others are put in the place of, if they do more than torch's; and parametrised ones."""
    parent = group.parent
    for name in [group.attention] if group.attention is not None else [*group.columns, group.row]:
        layer = getattr(parent, name)
        replaced = group.fused and name != group.row
        if group.attention is not None:
            fits = is_plain(layer, (nn.MultiheadAttention,)) and is_plain(layer.out_proj)
        else:
            fits = is_plain(layer) if replaced else "weight" in layer._parameters  # noqa: SLF001
        if not fits:
            raise UnsupportedPlan.of(
                "tensor",
                f"{type(parent).__name__}.{name} has a forward pass, hooks or a parametrisation of its own; allowed: "
                "torch's layer as it is, or a plan without tensor parallelism",
            )


def _equal_everywhere(module: nn.Module, mesh: DeviceMesh) -> None:
    """Make DTensors of what else a group holds, such as norms of each head or a mask."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        if not isinstance(parameter, DTensor):
            whole = distribute_tensor(parameter.detach(), mesh, [Replicate()])
            setattr(module, name, nn.Parameter(whole, parameter.requires_grad))
    for name, buffer in list(module.named_buffers(recurse=False)):
        if not isinstance(buffer, DTensor):
            setattr(module, name, distribute_tensor(buffer, mesh, [Replicate()]))


def _entering(mesh: DeviceMesh) -> Callable[..., Any]:
    """Return a hook that hands tensors to a group once: so their gradients are summed once too."""

    def whole(each: Any) -> Any:
        if isinstance(each, DTensor):
            return each
        if each.requires_grad:
            return _Entered.apply(each, mesh)
        return DTensor.from_local(each, mesh, [Replicate()], run_check=False)

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if module.training:
            kwargs = without_caches(kwargs)
        # Arguments may be pairs, such as rotary angles.
        return map_only(torch.Tensor, whole, (args, kwargs))

    return hook


class _Entered(Function):
    """A whole tensor as a DTensor; its gradient comes as a sum to be made."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        ctx.group = mesh.get_group()
        return DTensor.from_local(x.view_as(x), mesh, [Replicate()], run_check=False)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient.placements[0].is_partial():
            return all_reduce(gradient.to_local(), ctx.group), None
        return gradient.full_tensor(), None


def _sum_replicated(module: nn.Module) -> None:
    for parameter in module.parameters():
        if isinstance(parameter, DTensor) and all(placement.is_replicate() for placement in parameter.placements):
            parameter.register_post_accumulate_grad_hook(_sum_partial)


def _sum_partial(parameter: torch.Tensor) -> None:
    """Sum what each rank found for a parameter that all hold."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
        parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]


_WHOLE_GRADIENT = "replicated_with_grad_allreduce"
_GATHERED, _SPLIT = "colwise_gather_output", "rowwise_split_input"
_LATENT = "mla_kv_a_proj"
_STYLES = {"colwise": 0, "rowwise": 1, _GATHERED: 0, _SPLIT: 1, _WHOLE_GRADIENT: -1, _LATENT: -1}
"""The dimension of the weight that each divides; -1: none."""


def _own_plan(model: nn.Module) -> dict[str, str]:
    """Return what a model's own plan says of the layers of its blocks, {} without one; other layers stay whole.

    What it says of experts in stacked weights is left out: they are divided whole.
    """
    found = getattr(model, "tp_plan", None)
    plan = {path: style for path, style in found.items() if "*" in path} if isinstance(found, Mapping) else {}
    experts = {path: module for path, module in model.named_modules() if are_experts(module)}
    held = {f"{path}.{name}" for path, module in experts.items() for name, _ in module.named_parameters()} | {*experts}
    return {path: style for path, style in plan.items() if not any(map(_pattern(path).fullmatch, held))}


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\*", "[^.]+"))


def _divide_by_plan(model: nn.Module, plan: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Divide layers as their model's plan says. Raises `UnsupportedPlan` for what cannot be divided so."""
    patterns = {_pattern(path): style for path, style in plan.items()}
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
    if rest or units % mesh.size():
        what = "heads" if width != 1 else "features"
        raise UnsupportedPlan.of("tensor", f"the {units} {what} of {path} cannot be divided by {mesh.size()}")
    layer.weight = divided(layer.weight, mesh, Shard(dimension), "tensor")
    if dimension == 0 and layer.bias is not None:
        layer.bias = divided(layer.bias, mesh, Shard(0), "tensor")
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
