"""Flattens trees of values (pytrees): what models are given, hand on and return, and the bytes of their storages.

Trees are made of the containers that torch knows, of dataclasses and of mappings.

Torch's own trees take a dataclass or a mapping of a class of its own for a leaf, so that tensors in it would keep the
graph of the stage that made them. No class of others is registered with torch: that would be for all code of the
process. A record of our own stands for them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

__all__ = [
    "CUDA_GRANULE",
    "StridedView",
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
    "without_caches",
]

_CPU_GRANULE, CUDA_GRANULE = 64, 512


class StridedView(NamedTuple):
    """What a tensor is without its storage."""

    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "StridedView":
        """Return that of a tensor in strides."""
        return cls(tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def of_same(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the view of a tensor that begins its storage."""
        return tensor.view(self.dtype).as_strided(self.size, self.stride, self.offset)

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a tensor that looks at a storage, of which autograd knows no other view."""
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        return made.set_(storage, self.offset, self.size, self.stride)


class _Record:
    """Stands for a dataclass or a mapping in torch's trees, which make that again from its values."""

    def __init__(self, kind: type, names: tuple[Any, ...], values: list[Any]) -> None:
        self.kind, self.names, self.values = kind, names, values


def flatten_tree(tree: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of a tree, and what it is without them."""
    leaves, spec = pytree.tree_flatten(tree)
    # torch takes dataclasses and mappings of own classes for leaves: look into them.
    if any(_named_values(leaf) is not None for leaf in leaves):
        return pytree.tree_flatten(pytree.tree_map(_with_records, tree))
    return leaves, spec


def unflatten_tree(leaves: Iterable[Any], spec: pytree.TreeSpec) -> Any:
    """Return the tree of these leaves."""
    return pytree.tree_unflatten(leaves, spec)


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


def _with_records(leaf: Any) -> Any:
    named = _named_values(leaf)
    if named is None:
        return leaf
    return _Record(type(leaf), tuple(named), pytree.tree_map(_with_records, list(named.values())))


def _make_record(values: Iterable[Any], of: tuple[type, tuple[Any, ...]]) -> Any:
    """Return a dataclass or mapping with these values; what it does when it is made it has done once."""
    kind, names = of
    named = dict(zip(names, values, strict=True))
    if not is_dataclass(kind):
        return kind(named)
    made: Any = kind.__new__(kind)
    for name, value in named.items():
        object.__setattr__(made, name, value)  # a frozen one too
    # Whose items are its fields, but for those that are None.
    if isinstance(made, dict):
        for each in fields(kind):
            if named.get(each.name) is not None:
                dict.__setitem__(made, each.name, named[each.name])
    return made


pytree.register_pytree_node(_Record, lambda record: (record.values, (record.kind, record.names)), _make_record)


def granule_of(model: nn.Module) -> int:
    """Return what the allocator of the model's device rounds a storage up to."""
    # Asked for at every step: one parameter tells.
    first = next(model.parameters(), None)
    return CUDA_GRANULE if first is not None and first.is_cuda else _CPU_GRANULE


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


def without_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments without caches of keys and values, which training does not read and DTensors do not fit into."""
    named = {name: None if name in _CACHES else value for name, value in kwargs.items()}
    return tuple(None if hasattr(value, "get_seq_length") else value for value in args), named


_CACHES = ("cache", "past_key_values", "past_key_value", "layer_past")
