"""Trees of values: what models are given, hand on and return, and the bytes of their storages.

Trees are made of the containers that torch knows, of dataclasses and of mappings.

Torch's own trees take a dataclass or a mapping of a class of its own for a leaf, so that tensors in it would keep the
graph of the stage that made them. Nothing is registered with torch: that would be for all code of the process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

__all__ = [
    "TreeSpec",
    "flatten_tree",
    "granule_of",
    "leaves_of",
    "local_tensor",
    "map_only",
    "rounded_bytes",
    "storage_key",
    "storage_keys",
    "tensors_of",
    "total_bytes",
    "unflatten_tree",
]

_CPU_GRANULE, _CUDA_GRANULE = 64, 512


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """What a tree is without its leaves."""

    outer: pytree.TreeSpec
    """As torch sees it."""
    inner: "tuple[_Record | None, ...]"
    """Of each leaf that torch sees, what it consists of; None of one that is a leaf."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A dataclass or a mapping without its values."""

    kind: type
    names: tuple[Any, ...]
    values: TreeSpec


def flatten_tree(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of a tree, and what it is without them."""
    outer, spec = pytree.tree_flatten(tree)
    leaves: list[Any] = []
    inner: list[_Record | None] = []
    # torch takes dataclasses and mappings of own classes for leaves: look into them.
    for leaf in outer:
        named = _named_values(leaf)
        if named is None:
            leaves.append(leaf)
            inner.append(None)
        else:
            below, values = flatten_tree(list(named.values()))
            leaves += below
            inner.append(_Record(type(leaf), tuple(named), values))
    return leaves, TreeSpec(spec, tuple(inner))


def unflatten_tree(leaves: Iterable[Any], spec: TreeSpec) -> Any:
    """Return the tree of these leaves."""
    return _build_tree(iter(leaves), spec)


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of a tree."""
    return flatten_tree(tree)[0]


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a tree."""
    # The usual cases, without torch's walk over the tree.
    if isinstance(tree, torch.Tensor):
        return [tree]
    if type(tree) is list and all(isinstance(each, torch.Tensor) for each in tree):
        return list(tree)
    return [leaf for leaf in leaves_of(tree) if isinstance(leaf, torch.Tensor)]


def map_only(kind: type, change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree whose leaves of a kind are changed."""
    leaves, spec = flatten_tree(tree)
    return unflatten_tree([change(leaf) if isinstance(leaf, kind) else leaf for leaf in leaves], spec)


def _named_values(leaf: Any) -> Mapping[Any, Any] | None:
    """Return the values of a dataclass or mapping by their names, None of what is a leaf."""
    if isinstance(leaf, torch.Tensor | nn.Module | type):
        return None
    if is_dataclass(leaf):
        own = {each.name: getattr(leaf, each.name) for each in fields(leaf) if hasattr(leaf, each.name)}
        return own | getattr(leaf, "__dict__", {})
    return leaf if isinstance(leaf, Mapping) else None


def _build_tree(leaves: Iterator[Any], spec: TreeSpec) -> Any:
    outer = [
        next(leaves) if record is None else _make_record(record, _build_tree(leaves, record.values))
        for record in spec.inner
    ]
    return pytree.tree_unflatten(outer, spec.outer)


def _make_record(record: _Record, values: list[Any]) -> Any:
    """Return a dataclass or mapping with these values; what it does when it is made it has done once."""
    named = dict(zip(record.names, values, strict=True))
    if not is_dataclass(record.kind):
        return record.kind(named)
    made = record.kind.__new__(record.kind)
    for name, value in named.items():
        object.__setattr__(made, name, value)  # a frozen one too
    # Whose items are its fields, but for those that are None.
    if isinstance(made, dict):
        for each in fields(record.kind):
            if named.get(each.name) is not None:
                dict.__setitem__(made, each.name, named[each.name])
    return made


def granule_of(model: nn.Module) -> int:
    """Return what the allocator of the model's device rounds a storage up to."""
    # Asked for at every step: one parameter tells.
    first = next(model.parameters(), None)
    return _CUDA_GRANULE if first is not None and first.is_cuda else _CPU_GRANULE


def storage_keys(tree: Any) -> set[int]:
    """Return the identities of the storages of a tree's tensors."""
    return {storage_key(tensor) for tensor in tensors_of(tree)}


def total_bytes(tensors: Iterable[torch.Tensor], granule: int) -> int:
    """Return the bytes of distinct storages."""
    return sum({storage_key(t): rounded_bytes(t, granule) for t in _dense_tensors(tensors)}.values())


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a tensor that several ranks divide; any other as it is."""
    # DTensor alone has it, which an older torch has elsewhere.
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def rounded_bytes(tensor: torch.Tensor, granule: int) -> int:
    """Return the bytes of a tensor's storage, rounded up to the granule."""
    return -(-tensor.untyped_storage().nbytes() // granule) * granule


def _dense_tensors(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        # An embedding's gradient.
        if tensor.layout == torch.sparse_coo:
            yield from (tensor._indices(), tensor._values())  # noqa: SLF001  the public ones want it coalesced
        else:
            yield local_tensor(tensor.detach()) if hasattr(tensor, "to_local") else tensor


def storage_key(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  the only one
