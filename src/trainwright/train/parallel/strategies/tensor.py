"""Tensor parallelism of transformer blocks: by the model's own plan, or by torch's DTensor.

Source: Shoeybi et al., arXiv 1909.08053, section 3. Within attention and feed-forward part tensors are DTensors,
outside they are plain and whole.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.blocks import blocks_of, is_plain
from trainwright.train.parallel.collectives import all_reduce
from trainwright.train.parallel.recompute.trees import map_only
from trainwright.train.parallel.strategies.tensor_attention import FusedColumns, MultiheadParallel, teach_attention
from trainwright.train.parallel.strategies.tensor_plan import divide_by_plan, own_plan
from trainwright.train.parallel.strategies.tensor_roles import TensorGroup, tensor_groups_of

__all__ = ["divide_blocks"]


def divide_blocks(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the linear layers of a model's transformer blocks over a mesh of one axis.

    Raises `UnsupportedPlan` if there are none, or heads that cannot be divided.
    """
    if plan := own_plan(model):
        divide_by_plan(model, plan, mesh)
        return
    found = [(block, groups) for block in blocks_of(model) if (groups := tensor_groups_of(block))]
    if not found:
        raise UnsupportedPlan.of(
            "tensor",
            f"{type(model).__name__} has no list of transformer blocks with linear layers that can be told apart; see "
            "the guide on parallel plans for how they are recognised",
        )
    for block, _ in found:
        _refuse_experts(block)
    if mesh.device_type == "cpu":
        teach_attention()
    for _, groups in found:
        for group in groups:
            _check_divisible(group, mesh.size())
            _divide_group(group, mesh)


def _refuse_experts(block: nn.Module) -> None:
    """Refuse weights of several experts in one parameter, which no linear layer holds."""
    for path, module in block.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 3 and not isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
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
    names = [group.attention] if group.attention is not None else [*group.columns, group.row]
    for name in names:
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

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
