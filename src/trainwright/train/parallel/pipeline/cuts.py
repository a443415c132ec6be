"""Cuts of a pipeline: where its stages begin, the stages as modules, and the parameters that several of them use."""

from itertools import accumulate

import torch
from torch import fx, nn

from trainwright.errors import UnsupportedModel, UnsupportedPlan
from trainwright.plan import Layout
from trainwright.train.parallel.blocks import blocks_of, chain_of
from trainwright.train.parallel.pipeline.graph_parts import cut_at, modules_above

__all__ = ["cut_model", "cuts_of", "drop_unused", "tied_parameters", "uncut_of"]


def cuts_of(model: nn.Module, plan: Layout) -> tuple[str, ...]:
    """Return the paths of the modules that the stages but the first begin with.

    A plan that names none counts the modules of an `nn.Sequential`, or leaves it to us: equal parts of the sequence, or
    of the model's blocks. Raises `UnsupportedPlan` where that does not fit the model.
    """
    chunks = plan.chunks if plan.schedule == "interleaved" else 1
    count = len(plan.placement) or plan.degrees.pipeline * chunks
    if plan.cuts:
        if len(plan.cuts) != count - 1:
            raise UnsupportedPlan.of(plan.strategy, f"it names {len(plan.cuts)} cuts for {count} stages")
        return plan.cuts
    if isinstance(model, nn.Sequential):
        chain = [path for path, _ in chain_of(model)]
    elif not plan.stages:
        paths = {module: path for path, module in model.named_modules()}
        chain = [paths[block] for block in blocks_of(model)]
    else:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"{type(model).__name__} is no nn.Sequential, whose modules its stages {plan.stages} could count; plan it "
            "with a profile of the model, which names them",
        )
    # Where the modules do not divide evenly, the first stages have one more.
    sizes = plan.stages or tuple(len(range(item, len(chain), count)) for item in range(count))
    if len(sizes) != count or sum(sizes) != len(chain) or min(sizes) < 1:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"its stages {sizes} are for {count} stages of {sum(sizes)} modules; the model has {len(chain)}, one after "
            "the other",
        )
    return tuple(chain[end] for end in accumulate(sizes[:-1]))


def uncut_of(model: nn.Module, cuts: tuple[str, ...]) -> list[nn.Module]:
    """Return the outermost modules that no stage begins within: those that are called as they are."""
    looked_into = {"", *modules_above(cuts)}
    return [
        each
        for path, each in model.named_modules()
        if path not in looked_into and path.rpartition(".")[0] in looked_into
    ]


def cut_model(model: nn.Module, plan: Layout, cuts: tuple[str, ...]) -> list[nn.Module]:
    """Return the stages of a model as modules. Raises `UnsupportedPlan` where it cannot be cut."""
    try:
        stages = cut_at(model, cuts)
    except UnsupportedModel as error:
        raise UnsupportedPlan.of(plan.strategy, str(error)) from error
    last = stages[-1]
    output = next(iter(reversed(last.graph.nodes))).args[0] if isinstance(last, fx.GraphModule) else None
    # Raised by every rank: the last one alone would leave the others waiting.
    if isinstance(output, tuple | list | dict):
        raise UnsupportedPlan.of(
            plan.strategy, f"{type(model).__name__} returns a {type(output).__name__}; allowed: one tensor"
        )
    return stages


def tied_parameters(
    model: nn.Module, stages: list[nn.Module], ranks_of: tuple[int, ...]
) -> list[tuple[nn.Parameter, list[int]]]:
    """Return the parameters that stages of several ranks use, with these ranks; in the model's order."""
    users: dict[nn.Parameter, set[int]] = {}
    for index, stage in enumerate(stages):
        for parameter in stage.parameters():
            users.setdefault(parameter, set()).add(ranks_of[index])
    return [
        (item, sorted(users[item]))
        for item in model.parameters()
        if item.requires_grad and len(users.get(item, ())) > 1
    ]


def drop_unused(model: nn.Module, stages: list[nn.Module]) -> None:
    """Drop the parameters and buffers of a model that these stages do not use, with the modules that have no others."""
    used = {id(item) for stage in stages for item in _tensors_of(stage)}
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            # Modules without tensors take no memory and stay.
            if _tensors_of(child) and not any(id(entry) in used for entry in _tensors_of(child)):
                setattr(module, name, nn.Identity())
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if id(tensor) not in used:
                setattr(module, name, None)


def _tensors_of(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
