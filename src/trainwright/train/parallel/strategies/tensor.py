"""Tensor parallelism of transformer blocks by torch's DTensor, with or without sequence parallelism.

Source: Shoeybi et al., arXiv 1909.08053, section 3; Korthikanti et al., arXiv 2205.05198, section 4.2. Within attention
and feed-forward part tensors are DTensors, outside they are plain: whole, or this rank's part of the sequence.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.blocks import blocks_of, divide_sequence_between, is_plain
from trainwright.train.parallel.collectives import all_gather, all_reduce, reduce_scatter, take_part
from trainwright.train.parallel.recompute.trees import map_only
from trainwright.train.parallel.strategies.tensor_attention import FusedColumns, MultiheadParallel, teach_attention
from trainwright.train.parallel.strategies.tensor_plan import divide_by_plan, own_plan
from trainwright.train.parallel.strategies.tensor_roles import TensorGroup, tensor_groups_of

__all__ = ["divide_blocks"]


def divide_blocks(model: nn.Module, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Divide the linear layers of a model's transformer blocks over a mesh of one axis.

    Raises `UnsupportedPlan` if there are none, or heads that cannot be divided.
    """
    strategy = "tensor+sequence" if sequence else "tensor"
    if plan := own_plan(model):
        if sequence:
            raise UnsupportedPlan.of(
                strategy,
                f"{type(model).__name__} has a plan of its own, whose attention counts positions by what enters it; "
                "allowed: tensor parallelism alone",
            )
        divide_by_plan(model, plan, mesh)
        return
    found = [(block, groups) for block in blocks_of(model) if (groups := tensor_groups_of(block))]
    if not found:
        raise UnsupportedPlan.of(
            strategy,
            f"{type(model).__name__} has no list of transformer blocks with linear layers that can be told apart; see "
            "the guide on parallel plans for how they are recognised",
        )
    for block, _ in found:
        _refuse_experts(block, strategy)
    if mesh.device_type == "cpu":
        teach_attention()
    # With sequence parallelism a tensor may be whole or a part: its length tells which.
    part = _Part() if sequence else None
    for block, groups in found:
        if part is not None:
            block.register_forward_pre_hook(part.note)
        for group in groups:
            _check_divisible(group, mesh.size(), strategy)
            _divide_group(group, mesh, part)
    blocks = [block for block, _ in found]
    if part is not None:
        for block, groups in found:
            _refuse_others(block, groups)
        divide_sequence_between(blocks, mesh.get_group(), strategy, scatter=False)
        for block in blocks:
            _divide_norms(block, mesh)


def _refuse_experts(block: nn.Module, strategy: str) -> None:
    """Refuse weights of several experts in one parameter, which no linear layer holds."""
    for path, module in block.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 3 and not isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
                whose = f"{path}.{name}".lstrip(".")
                raise UnsupportedPlan.of(strategy, f"{whose} holds experts; allowed: blocks of linear layers")


def _check_divisible(group: TensorGroup, world: int, strategy: str) -> None:
    wrong = [name for name, layer in group.columns.items() if layer.out_features % world]
    heads = next((found for item in _HEADS if isinstance(found := getattr(group.parent, item, None), int)), world)
    if wrong or heads % world:
        what = f"{heads} attention heads" if heads % world else f"the outputs of {wrong[0]}"
        raise UnsupportedPlan.of(strategy, f"{what} cannot be divided by {world}")


_HEADS = ("num_heads", "n_heads", "n_head", "heads", "nhead")


class _Part:
    """Tells what a rank holds a part of the sequence of; gradients do not tell, in evaluation there are none."""

    length = 0

    def note(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        """Take in what enters a block, (batch, part of the sequence, width); a pipeline's rank may lack the first."""
        self.length = args[0].shape[1]

    def __contains__(self, x: torch.Tensor) -> bool:
        return x.is_floating_point() and x.ndim == 3 and x.shape[1] == self.length


def _divide_group(group: TensorGroup, mesh: DeviceMesh, part: _Part | None) -> None:
    """Divide column-parallel layers, the row-parallel one behind them, and what lies between."""
    sequence = part is not None
    outside = Shard(1) if sequence else Replicate()
    parent = group.parent
    _refuse_own(group)
    if group.attention is not None:
        attention = MultiheadParallel(getattr(parent, group.attention), mesh, sequence=sequence)
        setattr(parent, group.attention, attention)
        _sum_replicated(attention)
        return
    for name, layer in group.columns.items():
        if group.fused and sequence and not group.alone:
            raise UnsupportedPlan.of(
                "tensor+sequence",
                f"{type(parent).__name__} has {name} next to norms; move attention to a separate module",
            )
        if group.fused:
            setattr(parent, name, FusedColumns(layer, mesh))
        else:
            style = ColwiseParallel(input_layouts=Replicate() if group.alone else outside, use_local_output=False)
            parallelize_module(parent, mesh, {name: style})
    # Columns divide their outputs, the row sums over its divided input: one exchange for both.
    parallelize_module(parent, mesh, {group.row: RowwiseParallel(output_layouts=outside)})
    if group.alone:
        for module in parent.modules():
            _equal_everywhere(module, mesh)
        parent.register_forward_pre_hook(_entering(mesh, part), with_kwargs=True)
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


def _entering(mesh: DeviceMesh, part: _Part | None) -> Callable[..., Any]:
    """Return a hook that hands tensors to a group once, whole: so their gradients are summed once too."""

    def whole(each: Any) -> Any:
        if isinstance(each, DTensor):
            return each
        divided = part is not None and each in part
        if divided or each.requires_grad:
            return _Entered.apply(each, mesh, divided)
        return DTensor.from_local(each, mesh, [Replicate()], run_check=False)

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Arguments may be pairs, such as rotary angles.
        return map_only(torch.Tensor, whole, (args, kwargs))

    return hook


class _Entered(Function):
    """A tensor, whole or this rank's part of a sequence, as a whole DTensor; its gradient comes as a sum to be made."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: DeviceMesh, sequence: bool) -> torch.Tensor:
        ctx.settings = mesh.get_group(), sequence, (x.shape[1],) * mesh.size()
        local = (
            all_gather(x, mesh.get_group(), dim=1, sizes=ctx.settings[2], scatter=True) if sequence else x.view_as(x)
        )
        return DTensor.from_local(local, mesh, [Replicate()], run_check=False)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        group, sequence, sizes = ctx.settings
        # A gradient that is a sum still to be made is reduced, or scattered over the sequence.
        if gradient.placements[0].is_partial():
            term = gradient.to_local()
            found = reduce_scatter(term, group, dim=1, sizes=sizes) if sequence else all_reduce(term, group)
        else:
            total = gradient.full_tensor()
            found = take_part(total, group, dim=1, sizes=sizes) if sequence else total
        return found, None, None


def _sum_replicated(module: nn.Module) -> None:
    for parameter in module.parameters():
        if isinstance(parameter, DTensor) and all(placement.is_replicate() for placement in parameter.placements):
            parameter.register_post_accumulate_grad_hook(_sum_partial)


def _sum_partial(parameter: torch.Tensor) -> None:
    """Sum what each rank found for a parameter that all hold."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
        parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]


def _refuse_others(block: nn.Module, groups: list[TensorGroup]) -> None:
    """Refuse linear layers that were not told apart: where they are, attention may be, to all of the sequence."""
    for parent in block.modules():
        known = {
            name
            for known_stretch in groups
            if known_stretch.parent is parent
            for name in (*known_stretch.columns, known_stretch.row)
        }
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear) and name not in known:
                raise UnsupportedPlan.of(
                    "tensor+sequence",
                    f"{type(parent).__name__}.{name} is neither a layer that divides features nor one that sums them, "
                    "as far as can be told; see the guide on parallel plans for how they are recognised",
                )


def _divide_norms(block: nn.Module, mesh: DeviceMesh) -> None:
    """Let layers of a block that keep whole parameters, such as norms, see this rank's part of the sequence."""
    for path, module in block.named_modules():
        plain = [name for name, each in module.named_parameters(recurse=False) if not isinstance(each, DTensor)]
        if plain and any(True for _ in module.children()):
            raise UnsupportedPlan.of(
                "tensor+sequence",
                f"{type(module).__name__} has a parameter outside its layers, {plain[0]}; move it to a layer",
            )
        # Such as a norm: each rank sees its part of the sequence.
        if plain:
            parallelize_module(block, mesh, {path: SequenceParallel(use_local_output=True)})
            _sum_replicated(module)
