"""Batches on the device of their trial."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainwright.train.loader_sharding import ShardedBatches

__all__ = ["PlacedBatches", "place_batch"]


class PlacedBatches:
    """Batches that arrive on a device; `arrange` is called before each pass."""

    def __init__(self, batches: ShardedBatches, device: str, arrange: Callable[[], None]) -> None:
        self._batches = batches
        self._device = device
        self._arrange = arrange

    def __iter__(self) -> Iterator[Any]:
        self._arrange()
        return (place_batch(batch, self._device) for batch in self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def place_batch(batch: Any, device: str) -> Any:
    """Return a batch with its tensors on `device`: tensors, mappings, named tuples, tuples and lists of them."""
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: place_batch(item, device) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(place_batch(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(place_batch(item, device) for item in batch)
    return batch
