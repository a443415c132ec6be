"""The repeated blocks of a model: what is gathered at a time, and where a pipeline can be cut."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.collectives import gather, narrow
from trainwright.train.parallel.recompute.tracing import has_hooks

__all__ = ["blocks_of", "chain_of", "divide_between", "refuse_hooks", "units_of"]


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


def units_of(model: nn.Module) -> list[nn.Module]:
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


def divide_between(
    blocks: Sequence[nn.Module], group: dist.ProcessGroup, strategy: str, *, scatter: bool, note: Callable[[int], None]
) -> None:
    """Divide the sequence before the first block over a group, and gather it after the last.

    Blocks hand on (batch, length, width); `note` is told the length of a part. `scatter` is that of `gather`: whether
    ranks do different things with what is gathered.
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)

    def enter(_: nn.Module, args: tuple[Any, ...]) -> Any:
        size = args[0].shape[1] if args and isinstance(args[0], torch.Tensor) and args[0].ndim == 3 else 0
        if not size:
            raise UnsupportedPlan.of(strategy, "blocks are not handed (batch, length, width) as their first argument")
        if size % world:
            raise UnsupportedPlan.of(strategy, f"a sequence of {size} cannot be divided by {world}")
        part = size // world
        note(part)
        if scatter:
            return args[0].narrow(1, rank * part, part), *args[1:]
        return narrow(args[0], group, dim=1, sizes=(part,) * world), *args[1:]

    def leave(_: nn.Module, __: Any, found: torch.Tensor) -> torch.Tensor:
        return gather(found, group, dim=1, sizes=(found.shape[1],) * world, scatter=scatter)

    blocks[0].register_forward_pre_hook(enter, prepend=True)
    blocks[-1].register_forward_hook(leave)
