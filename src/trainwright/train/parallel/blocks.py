"""The repeated blocks of a model: what is gathered at a time, and where a pipeline can be cut."""

from collections import Counter

from torch import nn

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.recompute.tracing import has_hooks

__all__ = ["blocks_of", "chain_of", "refuse_hooks", "units_of"]


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
