"""The data loader: batches are a function of (seed, epoch, place), so it resumes in mid-epoch by two integers.

Neither the number of workers, nor what they had fetched ahead, nor the number of ranks changes a sample or its
augmentation: the order is a keyed permutation, and every sample is made under a seed of its own.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.checkpoint.state.differences import Difference, Effect
from trainwright.errors import TrialError
from trainwright.settings import refuse_unknown
from trainwright.train.batching import rank_share
from trainwright.train.sampling import SamplingOrder, SequentialOrder, ShuffledOrder, WeightedOrder
from trainwright.train.worker_dataset import BatchFetch, Samples, requesting
from trainwright.validators import check, integer

if TYPE_CHECKING:
    from trainwright.train.trial import Trial

__all__ = ["Loader"]


class Loader:
    """The batches of a map-style data set, cut for this rank, in an order of each epoch's own.

    A pass over it goes to the end of the epoch, and only there does the epoch end. A pass that is left before keeps its
    place, whatever it was left by: the next one goes on behind the last batch that was handed out, and so does one
    after `load_state_dict`. `epoch` counts from 1, as trials do.

    `global_batch` is the number of samples of all ranks together: rank r of W takes the r-th W-th of it, whatever W is.
    Who gives `batch_size` instead writes what torch's DataLoader takes, and it means what it means there: the samples
    of this one process, so W times as many of all ranks, and the order of the data set unless `shuffle` is true, where
    `global_batch` shuffles unless it is false. `Trial.prepare` shares a `batch_size` among its ranks, a DataLoader's
    and this one's alike.

    The seed is the trial's, or `seed`; 0 without. `weights` draws with replacement. `workers` (or `num_workers`)
    processes fetch ahead; with 0 the training process does it itself, and its generators stay as they were. Workers
    ignore SIGTERM: their parent ends them. Rank and world size are those of torch.distributed where it is in use, or
    as given.

    Not covered: generators that the data set keeps for itself, and CUDA's within it. `__getitems__` is not used.
    Raises `TrialError` for settings that do not fit each other, and for those of a DataLoader that are not taken.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        *,
        global_batch: int | None = None,
        trial: "Trial | None" = None,
        seed: int | None = None,
        workers: int | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        weights: Sequence[float] | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        **others: Any,
    ) -> None:
        import torch

        _refuse_others(others)
        fetching = _fetching_settings(workers, num_workers, prefetch_factor)
        if trial is not None and seed is not None:
            raise TrialError(f"Loader: got trial and seed={seed!r}; allowed: one of them, for a trial has a seed")
        self._seed = int(trial.seed if trial is not None else seed or 0)
        # With a trial, or without a rank, `prepare` may yet arrange other batches.
        at_once = trial is None and rank is not None
        rank, world = _place_of(rank, world_size)
        self.global_batch = _global_batch(batch_size, global_batch, world)
        self._batch_size = batch_size
        order = _order(dataset, batch_size is None if shuffle is None else shuffle, weights, self._seed)
        self._plan = _Plan(order=order, batch=self.global_batch, drop_last=drop_last, rank=rank, world=world)
        self._arranged = False
        if at_once:
            self._check_shares()
        fingerprint = getattr(dataset, "fingerprint", None)
        self._dataset = [order.size, fingerprint if isinstance(fingerprint, str) else None]
        self._pass: object | None = None
        self._share = 1 / world
        collate = collate_fn or torch.utils.data.default_collate
        self._loader = requesting(
            Samples(dataset, self._seed, collate),
            self._plan,
            fetching=fetching,
            pin_memory=pin_memory,
            persistent_workers=persistent_workers,
        )

    @property
    def epoch(self) -> int:
        """The epoch in work; the next one once a pass came to its end."""
        return self._plan.epoch

    @property
    def samples(self) -> int:
        """How many samples of the epoch, over all ranks, have been handed out."""
        return self._plan.samples

    @property
    def samples_seen(self) -> int:
        """How many samples have been handed out in all epochs, over all ranks."""
        return (self._plan.epoch - 1) * self._plan.used + self._plan.samples

    @property
    def pass_ended(self) -> bool:
        """Whether the last batch of the epoch has been handed out, and its pass has not come to its end yet."""
        return self._plan.samples >= self._plan.used

    def __len__(self) -> int:
        return len(self._plan)

    @property
    def share(self) -> float:
        """The part of its global batch that the batch handed out last is; 0 if it only stands in for no sample."""
        return self._share

    def arrange(self, batch: int) -> None:
        """Let the next pass have `batch` samples in a global batch; `Trial.prepare` does so.

        From here on a rank that has no sample of a last, uneven batch is handed one all the same, with a `share` of 0.
        """
        self._plan.batch, self._arranged = batch, True

    def move(self, rank: int, world_size: int) -> None:
        """Let the next pass take the samples of another rank, and a `batch_size` be that of all ranks together.

        `Trial.prepare` does so, for ranks that take the same.
        """
        self._plan.rank, self._plan.world = rank, world_size
        if self._batch_size is not None:
            self.global_batch = self._plan.batch = self._batch_size
        self._share = 1 / world_size

    def __iter__(self) -> Iterator[Any]:
        if not self._arranged:
            self._check_shares()
        this = self._pass = object()
        plan = self._plan
        for batch in self._loader:
            rank_places, count = plan.rank_places(plan.samples)
            self._share = len(rank_places) / count
            # Counted as it is handed out: what workers have fetched ahead is not done yet.
            plan.samples += count
            yield batch
            # A checkpoint was restored, or another pass begun.
            if self._pass is not this:
                return
        plan.epoch, plan.samples = plan.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and how many of its samples were handed out, and what they were counted in."""
        return {"epoch": self.epoch, "samples": self.samples, **self._facts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, at any number of workers and ranks; warns if the samples will differ."""
        if differences := self.state_differences(state):
            warnings.warn("; ".join(map(str, differences)), stacklevel=2)
        # With other settings an epoch may now have fewer samples than were handed out.
        self._plan.epoch, self._plan.samples = state["epoch"], min(state["samples"], self._plan.used)
        # A pass under way goes on no further, for its batches are those of the old place.
        self._pass = None

    def state_differences(self, state: Mapping[str, Any]) -> list[Difference]:
        """Return why the samples after `load_state_dict(state)` would not be those of the run that was saved."""
        return [
            Difference(item=f"loader.{name}", saved=state.get(name), now=now, effect=Effect.SAMPLES)
            for name, now in self._facts().items()
            if state.get(name) != now
        ]

    def _facts(self) -> dict[str, Any]:
        """Return what the samples of a place depend on."""
        return {
            "dataset": self._dataset,
            "order": type(self._plan.order).__name__,
            "global_batch": self.global_batch,
            "seed": self._seed,
        }

    def _check_shares(self) -> None:
        """Refuse global batches of which a rank would have more than another, or nothing."""
        plan = self._plan
        if plan.batch % plan.world:
            raise TrialError(
                f"global_batch must be a positive multiple of the world size {plan.world}, got {plan.batch}"
            )
        rest = plan.order.size % plan.batch
        if not plan.drop_last and 0 < rest < plan.world:
            raise TrialError(
                f"the last batch of an epoch has {rest} samples for {plan.world} ranks; give drop_last=True, or a "
                f"global_batch that leaves more over than {plan.batch}"
            )


@dataclass(kw_only=True)
class _Plan:
    """What is still to be fetched for this rank: a sampler for torch, begun anew with each pass.

    Apart from the loader, so that no circle of references keeps workers alive.
    """

    order: SamplingOrder
    batch: int
    drop_last: bool
    rank: int
    world: int
    epoch: int = 1
    samples: int = 0

    @property
    def used(self) -> int:
        """How many samples an epoch has, without the rest that is dropped."""
        return self.order.size - (self.order.size % self.batch if self.drop_last else 0)

    def __len__(self) -> int:
        return (self.used + self.batch - 1) // self.batch

    def __iter__(self) -> Iterator[BatchFetch]:
        epoch, start = self.epoch, self.samples
        # A checkpoint with another batch may stand where less than a whole one is left.
        while start < self.used and not (self.drop_last and self.used - start < self.batch):
            rank_places, count = self.rank_places(start)
            places = (
                np.arange(rank_places.start, rank_places.stop) if rank_places else np.array([start])
            )  # a rank always has something to do
            indices, repeats = self.order(epoch, places)
            yield BatchFetch(epoch, rank_places.start, indices.tolist(), None if repeats is None else repeats.tolist())
            start += count

    def rank_places(self, start: int) -> tuple[range, int]:
        """Return this rank's places of the global batch that begins at `start`, and how many that has."""
        count = min(self.batch, self.used - start)
        rank_places = rank_share(count, self.rank, self.world)
        return range(start + rank_places.start, start + rank_places.stop), count


def _global_batch(batch_size: int | None, global_batch: int | None, world: int) -> int:
    if (batch_size is None) == (global_batch is None):
        both = "neither" if batch_size is None else f"batch_size={batch_size!r} and global_batch={global_batch!r}"
        raise TrialError(
            f"Loader: got {both}; allowed: one of batch_size, the samples of this process at a step, and "
            "global_batch, those of all ranks together"
        )
    if batch_size is not None:
        check(batch_size, integer(minimum=1), "Loader: batch_size", TrialError)
        return batch_size * world
    check(global_batch, integer(minimum=1), "Loader: global_batch", TrialError)
    return global_batch  # type: ignore[return-value]  # it is given, where the other is not


def _order(dataset: Any, shuffle: bool, weights: Sequence[float] | None, seed: int) -> SamplingOrder:
    try:
        size = len(dataset)
    except TypeError as error:
        raise TrialError(
            f"Loader takes data sets with __len__ and __getitem__, got {type(dataset).__name__}; give a "
            "list of its samples"
        ) from error
    if size < 1:
        raise TrialError("Loader got a data set without samples; give one with at least one")
    if weights is None:
        return ShuffledOrder(size, seed) if shuffle else SequentialOrder(size)
    if len(weights) != size:
        raise TrialError(f"weights must be one a sample: got {len(weights)} for {size} samples")
    return WeightedOrder(weights, seed)


def _place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: those of torch.distributed where it is in use, or as given."""
    import torch.distributed as dist

    if rank is None and world_size is None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if (rank is None) != (world_size is None):
        raise TrialError(f"give both rank and world_size, or none; got rank={rank!r}, world_size={world_size!r}")
    rank, world_size = rank or 0, 1 if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise TrialError(f"rank must be in 0..world_size-1, got rank={rank} of world_size={world_size}")
    return rank, world_size


_ORDER = "the order is a function of the seed, or no place in it could be found again; give "
_REFUSED = {
    "generator": f"{_ORDER}seed=..., or trial=trial",
    "sampler": f"{_ORDER}shuffle=False for the order of the data set, weights=... for draws with weights, or a "
    "torch.utils.data.Subset for a part of it",
    "batch_sampler": f"{_ORDER}batch_size=... and drop_last=...",
    "worker_init_fn": "every sample is made under a seed of its own, whichever worker makes it; let the data set open "
    "what it needs when it is first asked for a sample",
}
"""Settings of torch's DataLoader that have no meaning here, and what to give in their place."""


def _refuse_others(settings: Mapping[str, Any]) -> None:
    """Raise `TrialError` for settings that the loader does not take; it suggests the nearest one that it does."""
    for setting in settings:
        if setting in _REFUSED:
            raise TrialError(f"Loader: {setting}: is not taken, for {_REFUSED[setting]}")
    parameters = inspect.signature(Loader).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    refuse_unknown(settings, known, "Loader", TrialError)


def _fetching_settings(workers: int | None, num_workers: int | None, prefetch_factor: int | None) -> dict[str, Any]:
    """Return the settings of torch's DataLoader by which batches are fetched ahead; `num_workers` names `workers` too.

    Raises `TrialError` for settings that do not fit each other.
    """
    if workers is not None and num_workers is not None:
        raise TrialError(f"Loader: got workers={workers!r} and num_workers={num_workers!r}; allowed: one of them")
    count = workers or 0 if num_workers is None else num_workers
    check(count, integer(minimum=0), "Loader: workers" if num_workers is None else "Loader: num_workers", TrialError)
    if prefetch_factor is None:
        return {"num_workers": count}
    check(prefetch_factor, integer(minimum=1), "Loader: prefetch_factor", TrialError)
    if not count:
        raise TrialError(
            f"Loader: prefetch_factor: got {prefetch_factor!r} without workers, which fetch ahead; give workers=1 or "
            "more, or leave it out"
        )
    return {"num_workers": count, "prefetch_factor": prefetch_factor}
