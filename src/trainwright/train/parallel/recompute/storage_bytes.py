"""Bytes of the storages in trees of tensors, as the allocator rounds them."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from trainwright.train.parallel.recompute.trees import tensors_of
from trainwright.train.parallel.recompute.values import storage_key

__all__ = ["granule_of", "rounded_bytes", "storage_keys", "total_bytes"]

_CPU_GRANULE, _CUDA_GRANULE = 64, 512


def granule_of(model: nn.Module) -> int:
    """Return what the allocator of the model's device rounds a storage up to."""
    return _CUDA_GRANULE if any(each.is_cuda for each in model.parameters()) else _CPU_GRANULE


def storage_keys(tree: Any) -> set[int]:
    """Return the identities of the storages of a tree's tensors."""
    return {storage_key(tensor) for tensor in tensors_of(tree)}


def total_bytes(tensors: Iterable[torch.Tensor], granule: int) -> int:
    """Return the bytes of distinct storages."""
    return sum({storage_key(t): rounded_bytes(t, granule) for t in _dense(tensors)}.values())


def rounded_bytes(tensor: torch.Tensor, granule: int) -> int:
    """Return the bytes of a tensor's storage, rounded up to the granule."""
    return -(-tensor.untyped_storage().nbytes() // granule) * granule


def _dense(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        if tensor.layout == torch.sparse_coo:  # an embedding's gradient
            yield from (tensor._indices(), tensor._values())  # noqa: SLF001  the public ones want it coalesced
        else:
            yield tensor
