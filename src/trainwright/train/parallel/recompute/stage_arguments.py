"""What a stage was called with, kept for its reruns: its own values, and places of what the stage before made.

An argument that is what the stage before returned, unchanged, is a link to it: the stage before may make it again.
Any other tensor is held until the stage's backward.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from trainwright.train.parallel.recompute.run_context import Autocast
from trainwright.train.parallel.recompute.trees import TreeSpec, flatten_tree, storage_key, unflatten_tree
from trainwright.train.parallel.recompute.values import detach_leaf, written_error

__all__ = ["StageCall", "links_of", "snapshot", "view_key"]


def view_key(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return what two tensors have in common that are the same view of a storage, written equally often."""
    if tensor.layout != torch.strided:
        return None
    place = int(tensor.storage_offset()), tensor.size(), tensor.stride()
    return storage_key(tensor), *place, tensor.dtype, tensor._version  # noqa: SLF001  counts the writes to a tensor


def links_of(leaves: Sequence[Any], below: Sequence[torch.Tensor | None]) -> dict[int, int]:
    """Return which leaves of the arguments are what the stage before has handed on: their places there."""
    made = {view_key(tensor): place for place, tensor in enumerate(below) if tensor is not None}
    made.pop(None, None)
    keys = ((at, view_key(leaf)) for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    return {at: made[key] for at, key in keys if key in made}


@dataclass(slots=True)
class StageCall:
    """A call of a stage, to be done again."""

    forward: Callable[..., Any]
    leaves: list[Any]
    spec: TreeSpec
    versions: list[int]
    """How often each leaf had been written; 0 for what is no tensor."""
    links: dict[int, int]
    """From places of leaves to places among the tensors that the stage before has handed on."""
    autocast: Autocast

    @classmethod
    def of(
        cls,
        forward: Callable[..., Any],
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        below: Sequence[torch.Tensor | None],
    ) -> "StageCall":
        """Return a call, as its arguments are now."""
        leaves, spec = flatten_tree(arguments)
        links = links_of(leaves, below)
        held = [None if at in links else snapshot(leaf) for at, leaf in enumerate(leaves)]
        versions = [leaf._version if isinstance(leaf, torch.Tensor) else 0 for leaf in leaves]  # noqa: SLF001
        return cls(forward, held, spec, versions, links, Autocast.now())

    def arguments(self, below: Sequence[torch.Tensor | None], where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for a rerun; raise UnsupportedModel if one has been written since."""
        found = []
        for at, leaf in enumerate(self.leaves):
            if at in self.links:
                found.append(below[self.links[at]])
            elif isinstance(leaf, torch.Tensor):
                if leaf._version != self.versions[at]:  # noqa: SLF001  counts the writes to a tensor
                    raise written_error(where, "what it reads")
                found.append(leaf)
            else:
                found.append(snapshot(leaf))
        args, kwargs = unflatten_tree(found, self.spec)
        return args, kwargs


_KEPT = (torch.Generator, nn.Module, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
"""What is never copied."""


def snapshot(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Return a value as it is now, whatever is written to the original: a cache of keys and values, say.

    Objects and containers are copied; their tensors are the same, out of their graph.
    """
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        return detach_leaf(value)
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, _KEPT):
        return value
    if isinstance(value, list):
        copied: list[Any] = []
        known[id(value)] = copied
        copied += [snapshot(each, known) for each in value]
        return copied
    if type(value) is tuple:
        return tuple(snapshot(each, known) for each in value)
    if isinstance(value, dict):
        made = known[id(value)] = copy.copy(value)
        for key in made:
            dict.__setitem__(made, key, snapshot(value[key], known))
        return made
    if hasattr(value, "__dict__"):
        made = known[id(value)] = copy.copy(value)
        vars(made).update({name: snapshot(each, known) for name, each in vars(value).items()})
        return made
    return value
