"""Sets up a model and its optimizer for a layout: wraps it in DDP, FSDP, tensor, pipeline or another parallelism."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trainwright.checkpoint.digest import XXH3, digest_bytes
from trainwright.checkpoint.save.shard_file import memory_of
from trainwright.errors import TrialError, UnsupportedPlan
from trainwright.plan import Layout
from trainwright.plan.runnable import innermost_axis
from trainwright.train.parallel.activation_checkpointing import recompute_blocks
from trainwright.train.parallel.blocks import LAYERS, blocks_of, marked, refuse_hooks, replace_layers
from trainwright.train.parallel.convolution.divided_layers import (
    ChannelParallel,
    FilterNorm,
    FilterParallel,
    SpatialParallel,
)
from trainwright.train.parallel.convolution.norm import SynchronisedNorm, learns_statistics
from trainwright.train.parallel.convolution.part import unshard_all
from trainwright.train.parallel.model import Loss, Parallel, Setup, data_ranks, mesh_of
from trainwright.train.parallel.pipeline.runner import PipelineRunner
from trainwright.train.parallel.recompute.budgeted import Budgeted
from trainwright.train.parallel.strategies.context import divide_sequence
from trainwright.train.parallel.strategies.data import GradientAveraging, shard_modules, wrap_in_ddp, wrap_in_fsdp
from trainwright.train.parallel.strategies.expert import are_experts, divide_experts
from trainwright.train.parallel.strategies.tensor import divide_blocks

__all__ = ["set_up", "set_up_model"]


def set_up(model: nn.Module, optimizer: Any, plan: Layout, **settings: Any) -> Parallel:
    """Return the model as the ranks of `plan` train it; the optimizer steps what this rank has of its parameters.

    Settings are those of `set_up_model`. Raises `UnsupportedPlan`; where parameters are divided, `TrialError` for an
    optimizer that has stepped, or of other parameters.
    """
    own = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    degrees = plan.degrees
    # All have all parameters.
    if not plan.zero and degrees.data * degrees.context * degrees.spatial == plan.devices:
        return set_up_model(model, plan, optimizer=own, **settings)
    if optimizer.state:
        raise TrialError("prepare: with a plan the optimizer is to be new; it has stepped already")
    # By its first name, under which the stage of a pipeline that owns a shared parameter has it.
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    foreign = [item for group in optimizer.param_groups for item in group["params"] if id(item) not in names]
    if foreign:
        raise TrialError(
            f"prepare: the optimizer has {len(foreign)} parameters that are not the model's; with a plan it needs the "
            "model's own"
        )
    parallel = set_up_model(model, plan, optimizer=own, **settings)
    # The groups of the optimizer keep their settings; their parameters become those that this rank has now.
    # Names survive the set-up, parameters may not (they become parts or sharded tensors).
    now = dict(parallel.module.named_parameters(remove_duplicate=False))
    for group in optimizer.param_groups:
        group["params"] = [now[name] for entry in group["params"] if (name := names[id(entry)]) in now]
        # Torch's grouped kernels take one kind of tensor.
        if len({type(one) for one in group["params"]}) > 1:
            group |= {name: False for name in ("foreach", "fused") if name in group}
    return parallel


def set_up_model(
    model: nn.Module,
    plan: Layout,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    sync_bn: bool = False,
    unused: bool = False,
    on_plan: Callable[[Any], None] = lambda _: None,
) -> Parallel:
    """Return the model as the ranks of `plan` train it together. Raises `UnsupportedPlan`.

    The state of `optimizer` is part of a memory budget; `on_plan` is called with each plan of it.
    """
    if plan.refusal:
        raise UnsupportedPlan.of(plan.strategy, plan.refusal)
    inner = innermost_axis(plan)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    mesh = mesh_of(plan, device.type)
    experts: list[nn.Parameter] = []
    if mesh is not None:
        _refuse_marked(model, plan)
        if inner == "context":
            refuse_hooks(model, plan.strategy)
        _share_weights(model)
        if sync_bn:
            _synchronise(model, plan, mesh)
        # Inside what is run again.
        if plan.degrees.tensor > 1 or plan.degrees.expert > 1:
            experts = _divide_within(model, plan, mesh)
        if inner == "context":
            divide_sequence(model, mesh.get_group("context"))
    budget = None
    if plan.memory is None:
        # Recomputation wraps blocks before the strategy does, so that a strategy's exchanges are run again too.
        recompute_blocks(model, plan)
    if plan.compile:
        for block in blocks_of(model) or [model]:
            block.compile(backend=plan.compile)
    if plan.memory is not None and inner != "pipeline":
        budget = Budgeted(
            model,
            plan.memory,
            optimizer=optimizer,
            # DDP's buckets of gradients.
            reserve_bytes=0 if mesh is None else sum(each.nbytes for each in model.parameters() if each.requires_grad),
            # What exchanges tensors within the model must do so in one order on all ranks.
            together=mesh is not None and (sync_bn or plan.zero > 0 or inner == "tensor"),
            on_plan=on_plan,
        )
    called = model if budget is None else budget.module
    if mesh is None:
        setup = Setup(module=model, call=called)
    elif inner == "pipeline":
        setup = _pipeline(model, plan, mesh, optimizer, experts)
    else:
        setup = _SETUPS[inner](_Parts(model=model, called=called, plan=plan, mesh=mesh, unused=unused, experts=experts))
    if budget is not None:
        setup = replace(setup, call=budget.planning(setup.call), budget=budget)
    return Parallel(_cast(setup, plan, device.type), plan, mesh)


def _share_weights(model: nn.Module) -> None:
    """Let all ranks start from the weights of rank 0. They mostly have them: they draw them from one seed."""
    tensors = [each.detach() for each in (*model.parameters(), *model.buffers())]
    if dist.get_backend() == "gloo" and all(each.is_contiguous() for each in tensors):
        # To compare takes a tenth of the time.
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, [digest_bytes(memory_of(each), XXH3) for each in tensors])
        if all(each == everyone[0] for each in everyone):
            return
    for tensor in tensors:
        dist.broadcast(tensor, 0)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What a strategy is set up with: the model, and what calls it."""

    model: nn.Module
    called: nn.Module
    plan: Layout
    mesh: DeviceMesh
    unused: bool
    experts: list[nn.Parameter]


def _cast(setup: Setup, plan: Layout, device_type: str) -> Setup:
    """Return a setup whose forward pass runs in the plan's precision."""
    kind = _CAST.get(plan.precision)
    if kind is None:
        return setup

    def cast(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            # Backward passes within it are not cast: theirs are as forward was.
            with torch.autocast(device_type, kind):
                return function(*args, **kwargs)

        return run

    return replace(setup, call=cast(setup.call), backward=None if setup.backward is None else cast(setup.backward))


def _refuse_marked(model: nn.Module, plan: Layout) -> None:
    """Refuse hooks of parameters where others are put in the place of all of these."""
    found = next((name for name, each in model.named_parameters() if marked(each)), None)
    if found is not None and (plan.zero or plan.degrees.tensor > 1):
        raise UnsupportedPlan.of(
            plan.strategy,
            f"{found} has a hook, which its shard on each rank would not have; allowed: hooks "
            "with data, filter, channel, spatial, context and pipeline parallelism without ZeRO",
        )


def _synchronise(model: nn.Module, plan: Layout, mesh: DeviceMesh) -> None:
    """Take batch statistics over all ranks that have other samples, or other rows of them."""
    if data_ranks(plan.degrees) * plan.degrees.spatial == plan.devices:
        group: Any = dist.group.WORLD
    elif plan.degrees.data > 1:
        group = mesh.get_group("data")
    else:
        return
    for module in model.modules():
        if learns_statistics(module):
            module.forward = SynchronisedNorm(module, group, copies=plan.degrees.spatial)


def _data(parts: _Parts) -> Setup:
    if parts.plan.zero:
        return _fsdp(parts, parts.mesh)
    return wrap_in_ddp(parts.model, parts.called, unused=parts.unused)


def _fsdp(parts: _Parts, mesh: DeviceMesh) -> Setup:
    return replace(wrap_in_fsdp(parts.model, mesh, zero=parts.plan.zero), call=parts.called)


def _averaged(parts: _Parts, group: Any) -> Setup:
    """Return a model, some of whose parameters are divided, whose gradients are averaged over a group."""
    averaging = GradientAveraging((parts.model.parameters(), group))
    return Setup(module=parts.model, call=parts.called, alone=averaging.off)


def _over_data(parts: _Parts) -> Setup:
    """Return a model whose parameters are divided already, over the data axis of the mesh."""
    if parts.plan.degrees.data == 1:
        return Setup(module=parts.model, call=parts.called)
    if parts.plan.zero:
        return _fsdp(parts, _data_axes(parts.mesh))
    return _averaged(parts, parts.mesh.get_group("data"))


def _filter(parts: _Parts) -> Setup:
    world, layers = parts.plan.degrees.filter, _divisible(parts.model)
    new: dict[nn.Module, nn.Module] = {}
    for module in parts.model.modules():
        if module in layers and FilterParallel.fits(module, world):
            new[module] = FilterParallel(module, parts.mesh, axis="filter")
        elif FilterNorm.fits(module, world):
            new[module] = FilterNorm(module, parts.mesh, axis="filter")
    if not any(isinstance(value, FilterParallel) for value in new.values()):
        new = {}
    return _divided(parts, new, "whose filters it divides")


def _channel(parts: _Parts) -> Setup:
    world = parts.plan.degrees.channel
    new = {
        item: ChannelParallel(item, parts.mesh["channel"], axis="channel")
        # An image has three channels.
        for item in _divisible(parts.model)[1:]
        if ChannelParallel.fits(item, world)
    }
    return _divided(parts, new, "but the first whose input channels it divides")


def _divided(parts: _Parts, new: "dict[nn.Module, Any]", which: str) -> Setup:
    plan = parts.plan
    if not new:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"{type(parts.model).__name__} has no convolution or linear layer {which} by "
            f"{plan.devices // plan.degrees.data}",
        )
    model = replace_layers(parts.model, new)
    setup = _over_data(replace(parts, model=model, called=model))
    return replace(setup, call=lambda *args, **kwargs: unshard_all(model(*args, **kwargs)))


def _data_axes(mesh: DeviceMesh) -> DeviceMesh:
    return mesh[tuple(name for name in mesh.mesh_dim_names or () if name in {"data", "replica", "shard"})]


def _copied_over(mesh: DeviceMesh, axis: str) -> DeviceMesh:
    """Return a mesh of which state is divided over the last axis, data, and equal on the first: one turned round."""
    groups, names = [mesh.get_group(axis), mesh.get_group("data")], (axis, "data")
    return DeviceMesh.from_group(groups, mesh.device_type, mesh=mesh.mesh.T, mesh_dim_names=names)


def _spatial(parts: _Parts) -> Setup:
    return wrap_in_ddp(parts.model, SpatialParallel(parts.model, parts.mesh.get_group("spatial")), unused=parts.unused)


def _context(parts: _Parts) -> Setup:
    plan, mesh = parts.plan, parts.mesh
    copies = mesh["data", "context"]._flatten() if plan.degrees.data > 1 else mesh["context"]  # noqa: SLF001
    if plan.zero and plan.shard > plan.degrees.data:
        return _fsdp(parts, copies)
    if plan.zero:
        return _fsdp(parts, _copied_over(mesh, "context"))
    if plan.degrees.tensor > 1:
        return _averaged(parts, copies.get_group())
    return wrap_in_ddp(parts.model, parts.called, unused=parts.unused)


def _expert(parts: _Parts) -> Setup:
    model, mesh = parts.model, parts.mesh
    if parts.plan.zero:
        # Inside the blocks, which are divided after them: over data ranks only, as there are no other copies.
        shard_modules([module for module in model.modules() if are_experts(module)], mesh["data"], zero=parts.plan.zero)
        return _fsdp(parts, _copied_over(mesh, "expert"))
    averaging = GradientAveraging(*_copies(model, parts.experts, mesh))
    return Setup(module=model, call=parts.called, alone=averaging.off)


def _divide_within(model: nn.Module, plan: Layout, mesh: DeviceMesh) -> list[nn.Parameter]:
    """Divide blocks over tensor ranks, and experts over theirs; return the parameters of experts on expert ranks."""
    if plan.degrees.tensor == 1:
        return divide_experts(model, mesh["expert"])
    return divide_blocks(model, mesh["tensor"], experts=mesh["expert", "tensor"] if plan.degrees.expert > 1 else None)


def _copies(model: nn.Module, experts: list[nn.Parameter], mesh: DeviceMesh) -> list[tuple[list[nn.Parameter], Any]]:
    """Return parameters and the ranks of their copies: of experts the data ranks, of all else expert ranks too."""
    names = {"data", "expert"}.intersection(mesh.mesh_dim_names or ())
    common = mesh["data", "expert"]._flatten() if len(names) > 1 else mesh[min(names)]  # noqa: SLF001
    held, divided = list(model.parameters()), {id(each) for each in experts}
    found = [([each for each in held if id(each) not in divided], common.get_group())]
    if "data" in names and experts:
        found.append(([each for each in held if id(each) in divided], mesh.get_group("data")))
    return found


def _pipeline(model: nn.Module, plan: Layout, mesh: DeviceMesh, optimizer: Any, experts: list[nn.Parameter]) -> Setup:
    stages = PipelineRunner(model, plan, mesh, optimizer)
    averaging = None
    if plan.zero:
        shard_modules(stages.called(), _data_axes(mesh), zero=plan.zero)
    elif data_ranks(plan.degrees) > 1:
        averaging = GradientAveraging(*_copies(stages.module, experts, mesh), by_itself=False)

    def backward(loss: Loss, batch: Any) -> torch.Tensor:
        value = stages.backward(loss, batch)
        if averaging is not None:
            averaging.all_reduce_gradients()
        return value

    return Setup(module=stages.module, call=stages, backward=backward)


def _divisible(model: nn.Module) -> list[nn.Module]:
    """Return the convolutions and linear layers, but for a classifier at the end, whose few outputs all ranks need.

    Those that share a parameter with another module stay whole too.
    """
    holders: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders.setdefault(id(parameter), []).append(module)
    tied = {module for modules in holders.values() if len(modules) > 1 for module in modules}
    layers = [item for item in model.modules() if isinstance(item, LAYERS)]
    if len(layers) > 1 and isinstance(layers[-1], nn.Linear):
        layers.pop()
    return [layer for layer in layers if layer not in tied]


_SETUPS: dict[str, Callable[[_Parts], Setup]] = {
    "data": _data,
    "filter": _filter,
    "channel": _channel,
    "spatial": _spatial,
    "context": _context,
    "expert": _expert,
    "tensor": _over_data,
}
_CAST = {"amp-bf16": torch.bfloat16}
"""To what operations are cast, by precision."""
