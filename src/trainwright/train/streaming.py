"""A loader of streams whose batches are a function of (seed, epoch, step), as those of `Loader` are.

A stream is cut into a fixed number of shards, whatever number of workers and ranks there is. Batch k of an epoch comes
from the shards of group k mod G, as many from each; every rank takes its part of them. Each sample is made under a seed
of its own. So two integers tell where a training stands: what was read before it is read again, and dropped.
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwright.checkpoint.state.differences import Difference, Effect
from trainwright.errors import TrialError
from trainwright.train.keywords import check_whole, fetching_settings, refuse_unknown
from trainwright.train.loader import place_of
from trainwright.train.worker_dataset import requesting, sample_key, seed_generators, seed_of, undisturbed

if TYPE_CHECKING:
    from trainwright.train.trial import Trial

__all__ = ["StreamLoader"]


class StreamLoader:
    """The batches of an iterable data set, resumed in the middle of an epoch bit for bit.

    The data set is iterated once a shard, each time as if it were worker number `shard` of `shards` (torch's
    `get_worker_info`), which is how iterable data sets divide themselves. If it has `iter_shard(epoch, shard, shards,
    start)` that is called in its place, and can begin at its sample number `start` at once; if it has `set_epoch`, that
    is called first.

    A pass is one epoch, of `steps` batches, or until every shard is at its end; a batch may then be smaller, and
    several ranks need `steps`. `max_ranks` is the most that can share a batch: every number of ranks must divide it,
    and it must divide `global_batch` and `shards`. `workers` processes fetch ahead, best as many as divide
    `shards / max_ranks`: any number gives the same batches. The rest is as in `Loader`.

    Each shard of each epoch is read from a copy of the data set as it was given, so that nothing it keeps for itself is
    carried over. Raises `TrialError` for settings that do not fit each other, and when a shard ends before `steps`.
    """

    share: float
    """The part of its global batch that each rank's batch is."""

    def __init__(
        self,
        dataset: Any,
        *,
        global_batch: int,
        shards: int,
        trial: "Trial | None" = None,
        seed: int | None = None,
        steps: int | None = None,
        max_ranks: int = 1,
        workers: int | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        **others: Any,
    ) -> None:
        import torch

        refuse_unknown(StreamLoader, others)
        fetching = fetching_settings(
            "StreamLoader", workers=workers, num_workers=num_workers, prefetch_factor=prefetch_factor
        )
        own = seed_of("StreamLoader", trial, seed)
        if not hasattr(dataset, "__iter__") and not hasattr(dataset, "iter_shard"):
            raise TrialError(
                f"StreamLoader takes data sets with __iter__, got {type(dataset).__name__}; give one with __len__ and "
                "__getitem__ to tw.train.Loader"
            )
        rank, world = place_of(rank, world_size)
        _check(global_batch=global_batch, shards=shards, steps=steps, max_ranks=max_ranks, world=world)
        self.global_batch = global_batch
        self.share = 1 / world
        self._steps = steps
        # A batch has a part for each of `max_ranks` slots; a rank takes a run of them.
        slots = range(max_ranks * rank // world, max_ranks * (rank + 1) // world)
        cut = _Cut(shards=shards, slots=max_ranks, own=slots, each=global_batch // max_ranks, whole=steps is not None)
        self._slice = cut
        self._plan = _Plan(steps)
        self._facts = {"global_batch": global_batch, "shards": shards, "slots": max_ranks, "steps": steps, "seed": own}
        self._pass: object | None = None
        collate = collate_fn or torch.utils.data.default_collate
        self._loader = requesting(
            _Streams(dataset, own, cut, collate),
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
    def step(self) -> int:
        """How many batches of the epoch have been asked for; of shards at their end, too."""
        return self._plan.step

    def __len__(self) -> int:
        if self._steps is None:
            raise TypeError("a StreamLoader without steps has no length; give steps=...")
        return self._steps

    def arrange(self, batch: int) -> None:
        """Keep the batch: its shards are cut for it. `Trial.prepare` asks for no other."""

    def __iter__(self) -> Iterator[Any]:
        this = self._pass = object()
        plan, ended = self._plan, 0
        for batch in self._loader:
            plan.step += 1
            # The epoch is over when all groups of shards have come to their end, one after another.
            ended = ended + 1 if batch is None else 0
            if ended == self._slice.groups:
                break
            if batch is not None:
                yield batch
            if self._pass is not this:  # a checkpoint was restored, or another pass begun
                return
        plan.epoch, plan.step = plan.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the step in it, and what they were counted in."""
        return {"epoch": self.epoch, "step": self.step, **self._facts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` stood, at any number of workers and ranks; warns if the samples will be others."""
        if differences := self.state_differences(state):
            warnings.warn("; ".join(map(str, differences)), stacklevel=2)
        self._plan.epoch, self._plan.step = state["epoch"], state["step"]
        self._pass = None

    def state_differences(self, state: Mapping[str, Any]) -> list[Difference]:
        """Return why the samples after `load_state_dict(state)` would not be those of the run that was saved."""
        return [
            Difference(item=f"loader.{name}", saved=state.get(name), now=now, effect=Effect.SAMPLES)
            for name, now in self._facts.items()
            if state.get(name) != now
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    """How batches are cut: of `slots` parts of `each` samples, `own` are this rank's; `whole`: none smaller."""

    shards: int
    slots: int
    own: range
    each: int
    whole: bool

    @property
    def groups(self) -> int:
        """How many groups of shards take turns."""
        return self.shards // self.slots


class _Plan:
    """Which batches are still to be fetched: a sampler for torch, begun anew with each pass."""

    def __init__(self, steps: int | None) -> None:
        self.steps, self.epoch, self.step = steps, 1, 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        numbers = itertools.count(self.step) if self.steps is None else range(self.step, self.steps)
        return ((self.epoch, number) for number in numbers)


@dataclass(slots=True)
class _Open:
    """A shard that is being read: its iterator, and the number of the sample that comes next."""

    epoch: int
    iterator: Iterator[Any]
    position: int


class _Streams:
    """An iterable data set behind the requests of a loader; it keeps the shards open that it was asked for."""

    def __init__(self, dataset: Any, seed: int, cut: _Cut, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._slice, self._collate = dataset, cut, collate
        self._keys = {purpose: sample_key(seed, f"stream {purpose}") for purpose in ("shard", "sample", "batch")}
        self._open: dict[int, _Open] = {}

    def __getitem__(self, request: tuple[int, int]) -> Any:
        epoch, step = request
        # Groups of shards take turns; in each turn a shard gives its next samples.
        turn, group = divmod(step, self._slice.groups)
        with undisturbed():
            samples = []
            for slot in self._slice.own:
                shard = group * self._slice.slots + slot
                found = self._read(epoch, shard, turn * self._slice.each)
                if self._slice.whole and len(found) < self._slice.each:
                    ended = turn * self._slice.each + len(found)
                    raise TrialError(
                        f"StreamLoader: shard {shard} ended after {ended} samples, in batch {step + 1} of epoch "
                        f"{epoch}; give steps={step} at most"
                    )
                samples += found
            if not samples:
                return None
            seed_generators(self._keys["batch"], epoch, step, self._slice.own.start)
            return self._collate(samples)

    def _read(self, epoch: int, shard: int, start: int) -> list[Any]:
        """Return the next samples of a shard from number `start` on; fewer at its end."""
        reader = self._open.get(shard)
        if reader is None or reader.epoch != epoch or reader.position > start:
            reader = self._open[shard] = self._opened(epoch, shard, start)
        while reader.position < start and self._next(reader, shard):  # read again, and dropped
            pass
        return [sample for _ in range(self._slice.each) for sample in self._next(reader, shard)]

    def _opened(self, epoch: int, shard: int, start: int) -> _Open:
        try:
            # Each shard is read by a copy, as by a worker process of torch.
            dataset = copy.deepcopy(self._dataset)
        except TypeError as error:
            raise TrialError(
                f"StreamLoader: {type(self._dataset).__name__} cannot be copied: {error}; open files and connections "
                "in __iter__, not before"
            ) from error
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        seed_generators(self._keys["shard"], epoch, shard, 0)
        if hasattr(dataset, "iter_shard"):
            return _Open(epoch, iter(dataset.iter_shard(epoch, shard, self._slice.shards, start)), start)
        with _as_worker(shard, self._slice.shards, dataset):
            return _Open(epoch, iter(dataset), 0)

    def _next(self, reader: _Open, shard: int) -> list[Any]:
        """Return the next sample of a shard in a list, which is empty at its end."""
        seed_generators(self._keys["sample"], reader.epoch, shard, reader.position)
        with _as_worker(shard, self._slice.shards, self._dataset):
            try:
                found = [next(reader.iterator)]
            except StopIteration:
                return []
        reader.position += 1
        return found


@contextmanager
def _as_worker(number: int, count: int, dataset: Any) -> Iterator[None]:
    """Let `torch.utils.data.get_worker_info` say that this is such a worker."""
    from torch.utils.data._utils import worker

    before = worker._worker_info  # noqa: SLF001 -- what get_worker_info returns
    worker._worker_info = worker.WorkerInfo(id=number, num_workers=count, seed=number, dataset=dataset)  # noqa: SLF001
    try:
        yield
    finally:
        worker._worker_info = before  # noqa: SLF001


def _check(*, global_batch: int, shards: int, steps: int | None, max_ranks: int, world: int) -> None:
    for name, value in (("global_batch", global_batch), ("shards", shards), ("max_ranks", max_ranks)):
        check_whole("StreamLoader", name, value)
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise TrialError(f"StreamLoader: steps: got {steps!r}; allowed: a whole number >= 1, or None")
    for name, value in (("global_batch", global_batch), ("shards", shards)):
        if value % max_ranks:
            raise TrialError(f"StreamLoader: {name}: got {value}; allowed: a multiple of max_ranks={max_ranks}")
    if max_ranks % world:
        raise TrialError(
            f"StreamLoader: max_ranks={max_ranks} parts of a batch cannot be shared evenly by {world} ranks; give a "
            f"multiple of {world}"
        )
    if world > 1 and steps is None:
        raise TrialError(f"StreamLoader: {world} ranks cannot tell each other when a stream ends; give steps=...")
