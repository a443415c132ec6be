"""The repeated blocks of a model: what is gathered at a time, and where a pipeline can be cut."""

from torch import nn

__all__ = ["blocks_of", "chain_of"]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the children with parameters of every list or sequence of modules, the outermost, in order.

    Those of an `nn.Sequential` count if they are themselves made of modules; a model of none is one block, itself left
    out.
    """
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList) or (isinstance(child, nn.Sequential) and _composed(child)):
            found += [block for block in child if any(True for _ in block.parameters())]
        else:
            found += blocks_of(child)
    if isinstance(model, nn.Sequential) and not found:
        found = [
            block for block in model if any(True for _ in block.children()) and any(True for _ in block.parameters())
        ]
    return found


def chain_of(model: nn.Module, path: str = "") -> list[tuple[str, nn.Module]]:
    """Return modules that, one after the other, are the model, with their paths: those of nested `nn.Sequential`s."""
    if not isinstance(model, nn.Sequential):
        return [(path, model)]
    return [each for name, child in model.named_children() for each in chain_of(child, f"{path}.{name}".lstrip("."))]


def _composed(sequence: nn.Sequential) -> bool:
    return all(any(True for _ in child.children()) for child in sequence)
