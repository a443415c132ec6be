"""Bytes of the storages in trees of tensors, as the allocator rounds them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from trainwright.memory.execute.values import storage_key

__all__ = ["rounded", "storages", "tensors_of", "total_bytes"]


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a tree."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def storages(tree: Any) -> set[int]:
    """Return the identities of the storages of a tree's tensors."""
    return {storage_key(tensor) for tensor in tensors_of(tree)}


def total_bytes(tensors: Iterable[torch.Tensor], granule: int) -> int:
    """Return the bytes of distinct storages."""
    return sum({storage_key(t): rounded(t, granule) for t in tensors}.values())


def rounded(tensor: torch.Tensor, granule: int) -> int:
    """Return the bytes of a tensor's storage, rounded up to the granule."""
    return -(-tensor.untyped_storage().nbytes() // granule) * granule
