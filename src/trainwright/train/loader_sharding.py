"""Shards the batches of the user's own DataLoader over the ranks of a trial without changing a sample of them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from trainwright.errors import TrialError
from trainwright.train.batch_slicing import place_batch
from trainwright.train.batching import rank_share
from trainwright.train.loader import Loader

__all__ = ["PlacedBatches", "ShardedBatches", "shard_batches"]


class PlacedBatches:
    """The batches of an epoch, on a device; `arrange` is called before each.

    It returns how many batches the epoch has, which may be more than the data set has; None: a pass over that.
    `length` is what it has returned last.
    """

    def __init__(
        self, batches: "ShardedBatches", device: str, arrange: Callable[[], int | None], length: int | None = None
    ) -> None:
        self._batches = batches
        self._device = device
        self._arrange = arrange
        self._length = length

    def __iter__(self) -> Iterator[Any]:
        length = self._arrange()
        return (place_batch(batch, self._device) for batch in self._take(length))

    def __len__(self) -> int:
        return self._length or len(self._batches)

    def _take(self, length: int | None) -> Iterator[Any]:
        if length is None:
            yield from self._batches
            return
        taken = 0
        # Pass after pass, of which the last is left before its end.
        while taken < length:
            for batch in islice(self._batches, length - taken):
                taken += 1
                yield batch


def shard_batches(
    loader: Any, *, rank: int, world: int, ranks: int | None = None
) -> "tuple[ShardedBatches, int | None]":
    """Return the batches of a loader for this rank, and how many samples each has over all ranks, if that is known.

    `ranks` processes go through them together, more than `world` where several take the same samples. Raises
    `TrialError` for a loader whose batches cannot be shared by several ranks.
    """
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

    ranks = world if ranks is None else ranks
    if isinstance(loader, Loader):
        loader.move(rank, world)
        return loader, loader.global_batch
    if isinstance(loader, DataLoader) and isinstance(loader.sampler, DistributedSampler):
        raise TrialError(
            "prepare: the loader has a DistributedSampler, but prepare shares its batches itself; give "
            "DataLoader(..., shuffle=True) with the batch of all devices together"
        )
    mapped = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if mapped and loader.batch_sampler is not None:
        return _ShardedBatches(loader, rank=rank, world=world, ranks=ranks), loader.batch_size
    if ranks > 1:
        raise TrialError(
            f"prepare: the batches of {_named(loader)} cannot be shared by {ranks} processes; give tw.train.Loader, or "
            "a DataLoader with a batch_size over a data set with __len__ and __getitem__"
        )
    return _UnshardedBatches(loader), None


class _UnshardedBatches:
    """Any iterable, for a process alone."""

    share = 1.0

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def arrange(self, batch: int) -> None:
        """Take what comes: whoever made the loader chose its batches."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


class _ShardedBatches:
    """A DataLoader of torch over a map-style data set.

    Rank 0 draws the order of each epoch, as the DataLoader would alone, and tells it to the others; each fetches its
    part of every batch. So the samples of a step are the same on any number of ranks, whatever sampler there is.
    """

    def __init__(self, loader: Any, *, rank: int, world: int, ranks: int) -> None:
        self._loader = loader
        self._rank, self._world, self._ranks = rank, world, ranks
        self._batch: int | None = loader.batch_size
        # The indices of this rank's batches, set anew for each pass.
        self._parts: list[Sequence[Any]] = []
        # A DataLoader of this rank's parts, made when the user's own does not do.
        self._inner: Any = None
        self._seeds: Any = None
        self.share = 1 / world

    def arrange(self, batch: int) -> None:
        """Let the next pass have `batch` samples in a global batch."""
        self._batch = batch

    def __len__(self) -> int:
        if self._batch == self._loader.batch_size:
            return len(self._loader)
        samples = len(self._loader.sampler)
        return samples // self._batch if self._loader.drop_last else -(-samples // self._batch)  # type: ignore[operator]  # known, or equal

    def __iter__(self) -> Iterator[Any]:
        # Alone and with its own batch the DataLoader does as it is.
        if self._ranks == 1 and self._batch == self._loader.batch_size:
            yield from self._loader
            return
        if self._inner is None:
            self._inner = self._make_loader()
        seed, batches = self._share_order()
        # Seeds the workers, in which samples may be augmented.
        # Equal seeds would augment the samples of all ranks alike.
        self._seeds.manual_seed((seed + self._rank) % 2**63)
        # Rank 0's order, of which each rank fetches its own part of every batch.
        # In place, as this very list is the batch sampler of the inner DataLoader.
        self._parts[:] = [self._part_of(batch) for batch in batches]
        for part, batch in zip(self._inner, batches, strict=True):
            self.share = len(rank_share(len(batch), self._rank, self._world)) / len(batch)
            yield part

    def _part_of(self, batch: Sequence[Any]) -> Sequence[Any]:
        share = rank_share(len(batch), self._rank, self._world)
        # A rank always has something to do.
        return batch[share.start : share.stop] or batch[:1]

    def _share_order(self) -> tuple[int, list[Sequence[Any]]]:
        """Return rank 0's seed and order of this epoch; leave the DataLoader's generator as rank 0 has it."""
        import torch

        generator = self._loader.generator
        said: list[Any] = [None]
        if (
            self._ranks == 1 or torch.distributed.get_rank() == 0
        ):  # first the seed, then the order: as a DataLoader draws them
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
            order = self._draw_order()
            said = [(seed, order, None if generator is None else generator.get_state())]
        if self._ranks > 1:
            torch.distributed.broadcast_object_list(said, 0, device=torch.device("cpu"))
        seed, order, state = said[0]
        if generator is not None:
            generator.set_state(state)
        return seed, order

    def _draw_order(self) -> list[Sequence[Any]]:
        loader, size = self._loader, self._batch
        if size == loader.batch_size:
            return [list(batch) for batch in loader.batch_sampler]
        # Another batch than its own: the same order of samples is cut anew.
        order = list(loader.sampler)
        end = len(order) - (len(order) % size if loader.drop_last else 0)  # type: ignore[operator]  # likewise
        return [order[start : min(end, start + size)] for start in range(0, end, size)]  # type: ignore[operator, arg-type]

    def _make_loader(self) -> Any:
        import torch

        loader = self._loader
        self._seeds = torch.Generator()
        return torch.utils.data.DataLoader(
            loader.dataset,
            batch_sampler=self._parts,  # type: ignore[arg-type]  # of sequences, which is all that is asked
            generator=self._seeds,
            **{name: getattr(loader, name) for name in _KEPT},
        )


ShardedBatches = Loader | _ShardedBatches | _UnshardedBatches
"""Batches of which each rank gets its share; a pass over them is an epoch."""

_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)


def _named(loader: Any) -> str:
    dataset = getattr(loader, "dataset", None)
    return f"a {type(loader).__name__}" + ("" if dataset is None else f" over a {type(dataset).__name__}")
