"""The loader takes what a user of torch's DataLoader writes, with the same meaning, or says why it does not."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainwright.errors import TrialError
from trainwright.train import Loader, Trial
from trainwright.train.assignment import Assignment

SIZE = 22


def data():
    return TensorDataset(torch.arange(float(SIZE)))


def as_sum(samples):
    return sum(value for (value,) in samples)


SETTINGS = {
    "batch_size": [1, 4, SIZE, 30],
    "shuffle": [None, False, True],
    "drop_last": [False, True],
    "collate_fn": [None, as_sum],
}


@pytest.mark.parametrize(
    "settings", [dict(zip(SETTINGS, values, strict=True)) for values in itertools.product(*SETTINGS.values())]
)
def test_the_same_batches_as_torch_s(settings):
    """In the order of the data set they are equal; shuffled they are as many, of the same sizes."""
    theirs, ours = list(DataLoader(data(), **settings)), list(loader := Loader(data(), **settings))
    assert len(loader) == len(theirs) == len(ours)
    if not settings["shuffle"]:
        assert _plain(ours) == _plain(theirs)
    elif settings["collate_fn"] is None:
        assert [len(batch) for (batch,) in ours] == [len(batch) for (batch,) in theirs]
        if not settings["drop_last"]:
            assert sorted(_flat(ours)) == sorted(_flat(theirs))
    elif not settings["drop_last"]:
        assert sum(ours) == sum(theirs)


def _plain(batches):
    return [
        batch.tolist() if isinstance(batch, torch.Tensor) else [part.tolist() for part in batch] for batch in batches
    ]


def _flat(batches):
    return [value for (batch,) in batches for value in batch.tolist()]


def test_by_position_and_with_workers():
    settings = {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True, "pin_memory": True}
    shuffled = _flat(Loader(data(), 4, True))
    assert shuffled != sorted(shuffled)
    assert _flat(Loader(data(), 4, True, **settings)) == shuffled
    assert _flat(Loader(data(), 4, workers=1)) == sorted(shuffled)


def test_seed_0_unless_given():
    assert _flat(Loader(data(), 4, True)) == _flat(Loader(data(), 4, True, seed=0))
    assert _flat(Loader(data(), 4, True)) != _flat(Loader(data(), 4, True, seed=1))
    assert _flat(Loader(data(), global_batch=4)) == _flat(Loader(data(), 4, True))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_batch_size_is_that_of_one_process(world):
    """As with torch, each rank gets so many; a global batch stays whatever the ranks are."""
    ranks = [Loader(data(), batch_size=2, drop_last=True, rank=rank, world_size=world) for rank in range(world)]
    assert {one.global_batch for one in ranks} == {2 * world}
    assert {len(batch) for one in ranks for (batch,) in one} == {2}
    joined = [torch.cat(parts).tolist() for parts in zip(*(next(iter(one)) for one in ranks), strict=True)]
    assert joined[0] != []
    whole = Loader(data(), global_batch=4, drop_last=True, rank=0, world_size=world)
    assert {len(batch) for (batch,) in whole} == {4 // world}


@pytest.mark.parametrize("kind", [DataLoader, Loader])
def test_a_trial_shares_it_among_its_ranks(kind):
    """A batch size means the same in a loader of either kind: what all ranks of the trial take at a step."""
    from trainwright.train.loader_sharding import shard_batches

    _, size = shard_batches(kind(data(), batch_size=4, shuffle=True), rank=1, world=2)
    assert size == 4


def test_a_trial_shares_one_made_among_ranks():
    from trainwright.train.loader_sharding import shard_batches

    trial = Trial(Assignment(trial=1, lease=1, params={}, seed=3), channel=None)
    made = Loader(data(), batch_size=4, trial=trial, rank=0, world_size=2)
    assert made.global_batch == 8
    batches, size = shard_batches(made, rank=0, world=2)
    batches.arrange(size)
    assert (size, made.state_dict()["global_batch"]) == (4, 4)
    assert [len(batch) for (batch,) in batches] == [2] * 5 + [1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "Loader: got neither; allowed: one of batch_size, the samples of this process"),
        (
            {"batch_size": 4, "global_batch": 4},
            "Loader: got batch_size=4 and global_batch=4; allowed: one of batch_size",
        ),
        ({"batch_size": 0}, "Loader: batch_size: got 0; allowed: a whole number >= 1"),
        ({"batch_size": 2.5}, "Loader: batch_size: got 2.5; allowed: a whole number >= 1"),
        ({"batch_size": "4"}, "Loader: batch_size: got '4'; allowed: a whole number >= 1"),
        ({"batch_size": 4, "batchsize": 4}, "Loader: 'batchsize' is unknown; allowed: dataset, batch_size, shuffle"),
        ({"batch_size": 4, "batchsize": 4}, "(did you mean 'batch_size'?)"),
        ({"batch_size": 4, "suffle": True}, "(did you mean 'shuffle'?)"),
        ({"batch_size": 4, "num_worker": 2}, "(did you mean 'num_workers'?)"),
        ({"batch_size": 4, "num_workers": -1}, "Loader: num_workers: got -1; allowed: a whole number >= 0"),
        ({"batch_size": 4, "workers": 1, "num_workers": 1}, "Loader: got workers=1 and num_workers=1; allowed: one of"),
        ({"batch_size": 4, "prefetch_factor": 2}, "Loader: prefetch_factor: got 2 without workers"),
        ({"batch_size": 4, "generator": torch.Generator()}, "Loader: generator: is not taken, for the order is"),
        ({"batch_size": 4, "sampler": range(3)}, "weights=... for draws with weights"),
        ({"batch_sampler": [[0]]}, "Loader: batch_sampler: is not taken"),
        ({"batch_size": 4, "worker_init_fn": print}, "every sample is made under a seed of its own"),
        (
            {"batch_size": 4, "seed": 1, "trial": Trial(Assignment(trial=1, lease=1, params={}, seed=3), channel=None)},
            "Loader: got trial and seed=1; allowed: one of them",
        ),
    ],
)
def test_refusals(settings, sentence):
    with pytest.raises(TrialError) as caught:
        Loader(data(), **settings)
    assert sentence in str(caught.value)
