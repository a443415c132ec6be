"""The loader of streams: the same batches at any number of workers and ranks, resumed anywhere."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from trainwright.checkpoint import Manager
from trainwright.checkpoint.state.differences import Effect
from trainwright.errors import CheckpointMismatchError, TrialError
from trainwright.train import Loader, StreamLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


class Numbers(IterableDataset):
    """Numbers below `size`, divided among workers as torch advises, in an order from a buffer, each with draws."""

    def __init__(self, size=64, buffer=5):
        self.size, self.buffer, self.epoch = size, buffer, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        held = []
        for number in range(info.id, self.size, info.num_workers):
            held.append(number)
            if len(held) >= self.buffer:
                yield self._sample(held)
        while held:
            yield self._sample(held)

    def _sample(self, held):
        number = held.pop(random.randrange(len(held)))
        return np.array([number, self.epoch, np.random.rand(), torch.rand(()).item()])  # noqa: NPY002 -- as users do


class Seekable:
    """Begins at any sample at once, and tells from where."""

    def __init__(self):
        self.begun = []

    def iter_shard(self, epoch, shard, shards, start):
        self.begun.append((epoch, shard, shards, start))
        return iter(range(100 * shard + start, 100 * shard + 8))

    def __deepcopy__(self, memo):
        return self


class Itself(IterableDataset):
    """Is its own iterator, with its state in itself."""

    def __init__(self):
        self.at = -1

    def __iter__(self):
        self.at = get_worker_info().id
        return self

    def __next__(self):
        self.at += 4
        if self.at > 40:
            raise StopIteration
        return self.at


def loader(**settings):
    return StreamLoader(Numbers(), **{"global_batch": 4, "shards": 4, "seed": 3, **settings})


def passes(loader, count=2):
    return [[batch.tolist() for batch in loader] for _ in range(count)]


@pytest.fixture(scope="module")
def expected():
    return passes(loader())


def test_every_sample_once_an_epoch_in_another_order(expected):
    orders = [[int(sample[0]) for batch in epoch for sample in batch] for epoch in expected]
    assert [sorted(order) for order in orders] == [list(range(64))] * 2
    assert orders[0] != orders[1]
    assert {sample[1] for batch in expected[1] for sample in batch} == {2}
    draws = [sample[column] for epoch in expected for batch in epoch for sample in batch for column in (2, 3)]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_workers_change_nothing(expected, workers):
    """Three, which share four shards unevenly, read some again."""
    assert passes(loader(workers=workers)) == expected


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_the_global_batch(world):
    """Joined, the parts of all ranks are the batch of one."""
    settings = {"shards": 8, "max_ranks": 4, "global_batch": 8, "steps": 7}
    alone = passes(loader(**settings))
    ranks = [passes(loader(rank=rank, world_size=world, **settings)) for rank in range(world)]
    for epoch, joined in enumerate(zip(*ranks, strict=True)):
        assert [list(itertools.chain(*parts)) for parts in zip(*joined, strict=True)] == alone[epoch]
    assert loader(rank=1, world_size=world, **settings).share == 1 / world


@pytest.mark.parametrize(("before", "after", "stop"), [(0, 2, 5), (1, 4, 1), (2, 0, 15), (4, 1, 6)])
def test_resumed_anywhere(expected, before, after, stop):
    """In the middle of an epoch, with other workers; what was fetched ahead is fetched again."""
    first = loader(workers=before)
    seen = []
    for batch in first:
        seen.append(batch.tolist())
        state = first.state_dict()  # as a checkpoint sees it, before the pass is left
        if len(seen) == stop:
            break
    second = loader(workers=after)
    second.load_state_dict(state)
    rest = passes(second)
    assert seen + rest[0] == expected[0]
    assert rest[1] == expected[1]


def test_generators_of_the_training_stay(expected):
    """Fetching in the training process draws nothing from its generators."""
    torch.manual_seed(1)
    random.seed(1)
    undisturbed = torch.rand(1), random.random()
    torch.manual_seed(1)
    random.seed(1)
    assert next(iter(loader())).tolist() == expected[0][0]
    assert (torch.rand(1), random.random()) == undisturbed
    assert get_worker_info() is None


def test_shards_of_other_lengths():
    """Those at their end give less, then nothing; the epoch ends with the last."""
    found = [batch.tolist() for batch in StreamLoader(range(7), global_batch=2, shards=1, seed=0)]
    assert found == [[0, 1], [2, 3], [4, 5], [6]]
    uneven = StreamLoader(Numbers(size=13), global_batch=2, shards=4, seed=0)
    assert sorted(int(sample[0]) for batch in uneven for sample in batch) == list(range(13))
    assert uneven.epoch == 2


def test_a_data_set_that_begins_anywhere():
    """It is asked to begin where the training stands, and only its own shards are opened."""
    dataset = Seekable()
    settings = {"global_batch": 2, "shards": 4, "max_ranks": 2, "seed": 0, "steps": 8}
    stream = StreamLoader(dataset, rank=1, world_size=2, **settings)
    stream.load_state_dict({**stream.state_dict(), "epoch": 3, "step": 5})
    assert [batch.tolist() for batch in stream] == [[302], [103], [303]]
    assert dataset.begun == [(3, 3, 4, 2), (3, 1, 4, 3)]


def test_a_data_set_that_is_its_own_iterator():
    """Each shard reads a copy of it, so that they do not disturb each other."""
    found = [batch.tolist() for batch in StreamLoader(Itself(), global_batch=2, shards=4, seed=0)]
    assert sorted(itertools.chain(*found)) == list(range(4, 41))


def test_within_a_manager(tmp_path, expected):
    """It is kept as any loader is; what would give other samples is refused."""
    saved = loader()
    with Manager(tmp_path, loader=saved) as manager:
        for number, _ in enumerate(saved, 1):
            if number == 6:
                manager.save(wait=True)
                break
    resumed = loader(workers=2)
    with Manager(tmp_path, loader=resumed) as manager:
        manager.restore()
    assert passes(resumed, 1)[0] == expected[0][6:]
    with (
        Manager(tmp_path, loader=loader(shards=8)) as manager,
        pytest.raises(CheckpointMismatchError, match=r"loader.shards was 4 and is 8 \(sees other samples\)"),
    ):
        manager.restore()
    assert {one.effect for one in loader(seed=4).state_differences(saved.state_dict())} == {Effect.SAMPLES}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch_size": 4}, "StreamLoader: batch_size: is not taken, .*; give global_batch=..., the samples of all"),
        ({"num_worker": 4}, r"StreamLoader: got 'num_worker'; allowed: .* \(did you mean 'num_workers'\?\)"),
        ({"sampler": range(4)}, "StreamLoader: sampler: is not taken, for the order is a function of the seed"),
        ({"prefetch_factor": 2}, "StreamLoader: prefetch_factor: got 2 without workers"),
        ({"global_batch": 0}, "global_batch: got 0; allowed: a whole number >= 1"),
        ({"shards": 1.5}, "shards: got 1.5; allowed: a whole number >= 1"),
        ({"steps": 0}, "steps: got 0; allowed: a whole number >= 1, or None"),
        ({"max_ranks": 3}, "global_batch: got 4; allowed: a multiple of max_ranks=3"),
        ({"max_ranks": 2, "rank": 0, "world_size": 4, "steps": 1}, "max_ranks=2 parts of a batch cannot be shared"),
        ({"max_ranks": 2, "rank": 0, "world_size": 2}, "2 ranks cannot tell each other when a stream ends; give steps"),
    ],
)
def test_refusals(settings, sentence):
    with pytest.raises(TrialError, match=sentence):
        loader(**settings)


def test_what_is_no_stream():
    with pytest.raises(TrialError, match="takes data sets with __iter__, got int"):
        StreamLoader(3, global_batch=1, shards=1, seed=0)
    with pytest.raises(TrialError, match=r"got generator; give tw.train.StreamLoader"):
        Loader((x for x in [1]), global_batch=1, seed=0)
    with pytest.raises(TrialError, match=r"generator cannot be copied: .*; open files and connections in __iter__"):
        list(StreamLoader((x for x in [1]), global_batch=1, shards=1, seed=0))
    with pytest.raises(TypeError, match="has no length; give steps"):
        len(loader())
    assert len(loader(steps=3)) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_that_ends_too_early(workers):
    with pytest.raises(TrialError, match="shard 0 ended after 16 samples, in batch 17 of epoch 1; give steps=16 at"):
        list(loader(steps=20, workers=workers))
