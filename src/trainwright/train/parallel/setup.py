"""Setting up a model and its optimizer for a layout: one function for each strategy that can be trained."""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from trainwright.errors import TrialError, UnsupportedPlan
from trainwright.plan import Layout
from trainwright.train.parallel.blocks import refuse_hooks
from trainwright.train.parallel.checkpointed_modules import run_again
from trainwright.train.parallel.convolution.channel import ChannelParallel
from trainwright.train.parallel.convolution.filter import FilterNorm, FilterParallel
from trainwright.train.parallel.convolution.norm import SynchronisedNorm, learns_statistics
from trainwright.train.parallel.convolution.part import wholes
from trainwright.train.parallel.convolution.spatial import SpatialParallel
from trainwright.train.parallel.layers import LAYERS, marked, replace_layers
from trainwright.train.parallel.mesh import mesh_of
from trainwright.train.parallel.model import Loss, Parallel, Setup
from trainwright.train.parallel.pipeline.runner import PipelineRunner
from trainwright.train.parallel.strategies.context import divide_sequence
from trainwright.train.parallel.strategies.fully_sharded import shard, shard_each
from trainwright.train.parallel.strategies.gradient_averaging import Averaging
from trainwright.train.parallel.strategies.tensor import divide_blocks

__all__ = ["set_up", "set_up_model"]


def set_up(model: nn.Module, optimizer: torch.optim.Optimizer, plan: Layout, *, sync_bn: bool = False) -> Parallel:
    """Return the model as the ranks of `plan` train it; the optimizer steps what this rank has of its parameters.

    Raises `UnsupportedPlan`, and `TrialError` for an optimizer that has stepped, or of other parameters.
    """
    if optimizer.state:
        raise TrialError("prepare: with a plan the optimizer is to be new; it has stepped already")
    names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    foreign = [item for group in optimizer.param_groups for item in group["params"] if id(item) not in names]
    if foreign:
        raise TrialError(
            f"prepare: the optimizer has {len(foreign)} parameters that are not the model's; with a plan it needs the "
            "model's own"
        )
    parallel = set_up_model(model, plan, optimizer=optimizer, sync_bn=sync_bn)
    # The groups of the optimizer keep their settings; their parameters become those that this rank has now.
    # Names survive the set-up, parameters may not (they become parts or sharded tensors).
    now = dict(parallel.module.named_parameters(remove_duplicate=False))
    for group in optimizer.param_groups:
        group["params"] = [now[name] for entry in group["params"] if (name := names[id(entry)]) in now]
        if len({type(one) for one in group["params"]}) > 1:  # torch's grouped kernels take one kind of tensor
            group |= {name: False for name in ("foreach", "fused") if name in group}
    return parallel


def set_up_model(
    model: nn.Module, plan: Layout, *, optimizer: torch.optim.Optimizer | None = None, sync_bn: bool = False
) -> Parallel:
    """Return the model as the ranks of `plan` train it together. Raises `UnsupportedPlan`.

    The state of `optimizer` is part of a memory budget.
    """
    inner = _checked(plan)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    mesh = mesh_of(plan, device.type)
    if mesh is None:
        run_again(model, plan)
        return Parallel(_cast(Setup(module=model, call=model), plan, device.type), plan, None)
    _refuse_marked(model, plan)
    if inner == "context" or plan.sequence:
        refuse_hooks(model, plan.strategy)
    # All ranks start from the weights of rank 0.
    _equalise(model)
    if sync_bn:
        _synchronise(model, plan, mesh)
    if inner == "context":  # inside what is run again
        if plan.degrees.tensor > 1:
            divide_blocks(model, mesh["tensor"], sequence=False)
        divide_sequence(model, mesh.get_group("context"))
    # Recomputation wraps blocks before the strategy does, so that a strategy's exchanges are run again too.
    run_again(model, plan)
    setup = _pipeline(model, plan, mesh, optimizer) if inner == "pipeline" else _SETUPS[inner](model, plan, mesh)
    return Parallel(_cast(setup, plan, device.type), plan, mesh)


def _checked(plan: Layout) -> str:
    """Return the degree that says how a plan is set up: that beside data, of pipelines "pipeline", else "data"."""
    inner = [
        name for column in fields(plan.degrees) if (name := column.name) != "data" and getattr(plan.degrees, name) > 1
    ]
    if len(inner) > 1 and set(inner) not in ({"tensor", "pipeline"}, {"tensor", "context"}):
        raise UnsupportedPlan.of(
            plan.strategy,
            f"{' and '.join(inner)} together; allowed: one of them, or tensor and pipeline or context, and data",
        )
    name = inner[-1] if inner else "data"
    if name not in {*_SETUPS, "pipeline"}:
        known = ", ".join((*_SETUPS, "pipeline"))
        raise UnsupportedPlan.of(plan.strategy, f"there is no module for {name} parallelism; allowed: {known}")
    if plan.zero and name not in {"data", "tensor", "context", "pipeline", "channel"}:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"ZeRO {plan.zero} beside {name} parallelism; allowed: with data, tensor, context, pipeline and channel "
            "parallelism",
        )
    if name == "context" and plan.degrees.tensor > 1 and (plan.zero or plan.sequence):
        what = f"ZeRO {plan.zero}" if plan.zero else "sequence parallelism"
        raise UnsupportedPlan.of(plan.strategy, f"{what} beside tensor and context parallelism; allowed: without")
    if plan.zero and name == "context" and plan.shard < plan.degrees.data:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"ZeRO over {plan.shard} of {plan.degrees.data} data ranks beside context parallelism; allowed: over all",
        )
    if plan.recompute not in _AGAIN:
        raise UnsupportedPlan.of(plan.strategy, f"recompute={plan.recompute!r}; allowed: {', '.join(_AGAIN)}")
    if plan.precision not in _AUTOCAST:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"precision {plan.precision!r}; allowed: {', '.join(_AUTOCAST)}; cast model and batches yourself",
        )
    return name


def _cast(setup: Setup, plan: Layout, device_type: str) -> Setup:
    """Return a setup whose forward pass runs in the plan's precision."""
    kind = _AUTOCAST[plan.precision]
    if kind is None:
        return setup

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, kind):
            return setup.call(*args, **kwargs)

    def backward(loss: Loss, batch: Any) -> torch.Tensor:
        assert setup.backward is not None  # noqa: S101 -- it is used only then
        with torch.autocast(device_type, kind):  # backward passes within it are not cast: theirs are as forward was
            return setup.backward(loss, batch)

    return replace(setup, call=call, backward=None if setup.backward is None else backward)


def _refuse_marked(model: nn.Module, plan: Layout) -> None:
    """Refuse hooks of parameters where others are put in the place of all of these."""
    found = next((name for name, each in model.named_parameters() if marked(each)), None)
    if found is not None and (plan.zero or plan.degrees.tensor > 1):
        raise UnsupportedPlan.of(
            plan.strategy,
            f"{found} has a hook, which the parameter that stands for it on each rank would not have; allowed: hooks "
            "with data, filter, channel, spatial, context and pipeline parallelism without ZeRO",
        )


def _equalise(model: nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), 0)


def _synchronise(model: nn.Module, plan: Layout, mesh: DeviceMesh) -> None:
    """Take batch statistics over all ranks that have other samples, or other rows of them."""
    if plan.degrees.data * plan.degrees.spatial == plan.devices:
        group: Any = dist.group.WORLD
    elif plan.degrees.data > 1:
        group = mesh.get_group("data")
    else:
        return
    for module in model.modules():
        if learns_statistics(module):
            module.forward = SynchronisedNorm(module, group, copies=plan.degrees.spatial)


def _data(model: nn.Module, plan: Layout, mesh: DeviceMesh) -> Setup:
    if plan.zero:
        return shard(model, mesh, zero=plan.zero)
    return _replicated(model, model, plan)


def _replicated(model: nn.Module, called: nn.Module, plan: Layout) -> Setup:
    """Return a model whose gradients torch's DDP averages; `called` is the model, or what calls it."""
    replicated = DistributedDataParallel(called, gradient_as_bucket_view=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return replicated(*args, **kwargs)
        except RuntimeError as error:
            if "Expected to have finished reduction" not in str(error):
                raise
            trained = [name for name, each in model.named_parameters() if each.requires_grad]
            left = [trained[int(place)] for place in _LEFT_OUT.sub("", str(error)).split() if place.isdigit()]
            raise UnsupportedPlan.of(
                plan.strategy,
                f"the last loss did not depend on {', '.join(left[:3]) or 'a parameter'}; allowed: steps that "
                "train all parameters (requires_grad_(False) for others), or ZeRO, if no rank trains them",
            ) from error

    return Setup(module=model, call=call, alone=replicated.no_sync)


def _filter(model: nn.Module, plan: Layout, mesh: DeviceMesh) -> Setup:
    world, layers = plan.degrees.filter, _divisible(model)
    new: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if module in layers and FilterParallel.fits(module, world):
            new[module] = FilterParallel(module, mesh, axis="filter")
        elif FilterNorm.fits(module, world):
            new[module] = FilterNorm(module, mesh, axis="filter")
    if not any(isinstance(value, FilterParallel) for value in new.values()):
        new = {}
    return _divided(model, new, plan, mesh, "whose filters it divides")


def _channel(model: nn.Module, plan: Layout, mesh: DeviceMesh) -> Setup:
    world = plan.degrees.channel
    new = {
        item: ChannelParallel(item, mesh["channel"], axis="channel")
        for item in _divisible(model)[1:]  # an image has three channels
        if ChannelParallel.fits(item, world)
    }
    return _divided(model, new, plan, mesh, "but the first whose input channels it divides")


def _divided(model: nn.Module, new: "dict[nn.Module, Any]", plan: Layout, mesh: DeviceMesh, which: str) -> Setup:
    if not new:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"{type(model).__name__} has no convolution or linear layer {which} by {plan.devices // plan.degrees.data}",
        )
    model = replace_layers(model, new)
    if plan.degrees.data == 1:
        return Setup(module=model, call=lambda *args, **kwargs: wholes(model(*args, **kwargs)))
    if plan.zero:
        names = tuple(name for name in mesh.mesh_dim_names or () if name in {"data", "replica", "shard"})
        sharded = shard(model, mesh[names], zero=plan.zero)
        return replace(sharded, call=lambda *args, **kwargs: wholes(model(*args, **kwargs)))
    averaging = Averaging(list(model.parameters()), mesh.get_group("data"))
    return Setup(module=model, call=lambda *args, **kwargs: wholes(model(*args, **kwargs)), alone=averaging.off)


def _spatial(model: nn.Module, plan: Layout, mesh: DeviceMesh) -> Setup:
    return _replicated(model, SpatialParallel(model, mesh.get_group("spatial")), plan)


def _context(model: nn.Module, plan: Layout, mesh: DeviceMesh) -> Setup:
    copies = mesh["data", "context"]._flatten() if plan.degrees.data > 1 else mesh["context"]  # noqa: SLF001
    if plan.zero and plan.shard > plan.degrees.data:
        return shard(model, copies, zero=plan.zero)
    if plan.zero:
        # State is divided over the last axis and equal on the first: the mesh turned round.
        groups, names = [mesh.get_group("context"), mesh.get_group("data")], ("context", "data")
        turned = DeviceMesh.from_group(groups, mesh.device_type, mesh=mesh.mesh.T, mesh_dim_names=names)
        return shard(model, turned, zero=plan.zero)
    if plan.degrees.tensor > 1:
        averaging = Averaging(list(model.parameters()), copies.get_group())
        return Setup(module=model, call=model, alone=averaging.off)
    return _replicated(model, model, plan)


def _tensor(model: nn.Module, plan: Layout, mesh: DeviceMesh) -> Setup:
    divide_blocks(model, mesh["tensor"], sequence=plan.sequence)
    if plan.degrees.data == 1:
        return Setup(module=model, call=model)
    if plan.zero:
        names = tuple(name for name in mesh.mesh_dim_names or () if name != "tensor")
        return shard(model, mesh[names], zero=plan.zero)
    averaging = Averaging(list(model.parameters()), mesh.get_group("data"))
    return Setup(module=model, call=model, alone=averaging.off)


def _pipeline(model: nn.Module, plan: Layout, mesh: DeviceMesh, optimizer: torch.optim.Optimizer | None) -> Setup:
    if plan.degrees.tensor > 1:
        divide_blocks(model, mesh["tensor"], sequence=plan.sequence)
    stages = PipelineRunner(model, plan, mesh, optimizer)
    averaging = None
    if plan.zero:
        names = tuple(name for name in mesh.mesh_dim_names or () if name not in {"tensor", "pipeline"})
        shard_each(stages.called(), mesh[names], zero=plan.zero)
    elif plan.degrees.data > 1:
        averaging = Averaging(list(stages.module.parameters()), mesh.get_group("data"), by_itself=False)

    def backward(loss: Loss, batch: Any) -> torch.Tensor:
        value = stages.backward(loss, batch)
        if averaging is not None:
            averaging.average()
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


_SETUPS: dict[str, Callable[[nn.Module, Layout, DeviceMesh], Setup]] = {
    "data": _data,
    "filter": _filter,
    "channel": _channel,
    "spatial": _spatial,
    "context": _context,
    "tensor": _tensor,
}
_LEFT_OUT = re.compile(r".*did not receive grad for rank \d+:|\n.*", re.DOTALL)
"""What DDP says around the places of parameters."""
_AGAIN = ("none", "selective", "full")
"""Recomputation that is set up."""
_AUTOCAST = {"fp32": None, "amp-bf16": torch.bfloat16}
"""Precisions that are set up, and to what operations are cast."""
