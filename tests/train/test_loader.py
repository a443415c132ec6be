"""The loader: the same samples and augmentations at any number of workers and ranks, resumed anywhere."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest
import torch

from trainwright.checkpoint.state.differences import Effect
from trainwright.errors import TrialError
from trainwright.train import Loader, Trial
from trainwright.train.assignment import Assignment

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

SIZE = 22


class Augmented:
    """Each sample: its index, and a draw of each of the three global generators."""

    def __init__(self, size=SIZE):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return np.array([index, random.random(), np.random.rand(), torch.rand(()).item()])  # noqa: NPY002 -- as users do


def mixing(samples):
    """Collate with a draw of its own, as functions that mix the samples of a batch do."""
    return torch.tensor(np.stack(samples)), torch.rand(()).item(), random.random()


def loader(**settings):
    return Loader(Augmented(), **{"global_batch": 4, "seed": 3, **settings})


def passes(loader, count=2):
    return [[batch.tolist() for batch in loader] for _ in range(count)]


@pytest.fixture(scope="module")
def expected():
    return passes(loader())


def test_every_sample_once_an_epoch_in_another_order(expected):
    orders = [[int(sample[0]) for batch in epoch for sample in batch] for epoch in expected]
    assert [sorted(order) for order in orders] == [list(range(SIZE))] * 2
    assert orders[0] != orders[1]
    assert len(loader()) == len(expected[0]) == 6


def test_augmentations_differ_between_samples_and_epochs(expected):
    draws = [sample[column] for epoch in expected for batch in epoch for sample in batch for column in (1, 2, 3)]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_change_nothing(expected, workers):
    assert passes(loader(workers=workers)) == expected


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_the_global_batch(expected, world):
    """Joined, the slices of all ranks are the batch of one; the last one, of two samples over, is shared too."""
    ranks = [passes(loader(rank=rank, world_size=world, drop_last=world == 4)) for rank in range(world)]
    for epoch, joined in enumerate(zip(*ranks, strict=True)):
        batches = [list(itertools.chain(*slices)) for slices in zip(*joined, strict=True)]
        assert batches == expected[epoch][: len(batches)]
        assert len(batches) == (5 if world == 4 else 6)


@pytest.mark.parametrize(("stop", "workers"), [*((stop, 0) for stop in range(1, 13)), (2, 2), (6, 2), (9, 1)])
def test_resumed_anywhere(expected, stop, workers):
    """After any number of batches, with batches fetched ahead or not, a new loader goes on with the very next one."""
    whole = [batch for epoch in expected for batch in epoch]
    before = loader(workers=workers)
    seen = []
    for _ in range(2):
        for batch in before:
            seen.append(batch.tolist())
            if len(seen) == stop:
                state = before.state_dict()
                break
        else:
            continue
        break
    after = loader(workers=2 - workers)
    after.load_state_dict(state)
    while len(seen) < 12:
        seen += [batch.tolist() for batch in after]
    assert seen == whole


def test_resumed_with_another_world_size(expected):
    """The samples that were seen count over all ranks, so that two ranks go on where one stood."""
    one = loader()
    for _ in zip(range(3), one):  # noqa: B905 -- the shorter one counts
        state = one.state_dict()
    ranks = [loader(rank=rank, world_size=2) for rank in range(2)]
    for each in ranks:
        each.load_state_dict(state)
    rest = [left.tolist() + right.tolist() for left, right in zip(*ranks, strict=True)]
    assert rest == expected[0][state["samples"] // 4 :]


def test_a_checkpoint_behind_the_last_batch_resumes_with_nothing_left(expected):
    """The epoch is not over until the loop is left: its evaluation is still to come."""
    before = loader()
    for _ in before:
        state = before.state_dict()
    assert (state["epoch"], state["samples"]) == (1, SIZE)
    after = loader()
    after.load_state_dict(state)
    assert passes(after) == [[], expected[1]]


def test_restored_within_a_pass(expected):
    """A restore in the middle of a loop ends that loop, and the next one begins where the checkpoint says."""
    rolled = loader()
    seen = 0
    for _ in rolled:
        seen += 1
        if seen == 2:
            state = rolled.state_dict()
        if seen == 4:
            rolled.load_state_dict(state)
    assert seen == 4
    assert passes(rolled, 1) == [expected[0][2:]]


def test_training_draws_on_undisturbed():
    """With no worker the process fetches by itself: its generators and threads stay as they were."""
    draws = []
    for one in (None, loader(), loader(workers=1)):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 -- the global generators are what is tested
        torch.manual_seed(1)
        for _ in one or ():
            pass
        draws.append((random.random(), np.random.rand(), torch.rand(3).tolist(), torch.get_num_threads()))  # noqa: NPY002
    assert draws[0] == draws[1] == draws[2]


def test_what_collate_draws_is_the_same_too():
    runs = [
        [(samples.tolist(), *drawn) for samples, *drawn in loader(workers=workers, collate_fn=mixing)]
        for workers in (0, 2)
    ]
    assert runs[0] == runs[1]
    assert len({drawn for _, drawn, _ in runs[0]}) == 6


def test_in_order_and_weighted():
    ordered = [int(sample[0]) for batch in loader(shuffle=False) for sample in batch]
    assert ordered == list(range(SIZE))
    weights = [0.0] * (SIZE - 2) + [1.0, 3.0]
    epochs = [np.concatenate(epoch) for epoch in passes(loader(weights=weights), 20)]
    drawn = np.concatenate(epochs)
    assert set(drawn[:, 0]) == {SIZE - 2, SIZE - 1}
    assert abs((drawn[:, 0] == SIZE - 1).mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / len(drawn))
    assert len(np.unique(drawn[:, 1])) == len(drawn)  # a sample drawn again looks different
    again = loader(weights=weights, workers=1)
    assert (np.concatenate(passes(again, 1)[0]) == epochs[0]).all()


def test_the_seed_of_a_trial():
    trial = Trial(Assignment(trial=1, lease=1, params={}, seed=3), channel=None)
    assert passes(Loader(Augmented(), global_batch=4, trial=trial), 1) == passes(loader(), 1)


def test_differences():
    state = loader().state_dict()
    assert loader().state_differences(state) == []
    other = Loader(Augmented(30), global_batch=6, seed=4, shuffle=False)
    found = other.state_differences(state)
    assert {difference.item for difference in found} == {
        "loader.dataset", "loader.order", "loader.global_batch", "loader.seed",
    }  # fmt: skip
    assert {difference.effect for difference in found} == {Effect.SAMPLES}
    with pytest.warns(
        UserWarning, match=r"loader\.dataset was \[22, None\] and is \[30, None\] \(sees other samples\)"
    ):
        other.load_state_dict(state)


def test_a_data_set_that_changed_is_told():
    """One that offers a fingerprint is compared by it."""
    one, other = Augmented(), Augmented()
    one.fingerprint, other.fingerprint = "abc", "abd"
    state = Loader(one, global_batch=4, seed=3).state_dict()
    (difference,) = Loader(other, global_batch=4, seed=3).state_differences(state)
    assert (difference.saved, difference.now) == ([22, "abc"], [22, "abd"])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"global_batch": 0}, "global_batch: got 0; allowed: a whole number >= 1"),
        ({"rank": 0, "world_size": 3}, "global_batch must be a positive multiple of the world size 3, got 4"),
        ({"rank": 3, "world_size": 2}, "rank must be in 0..world_size-1, got rank=3 of world_size=2"),
        ({"rank": 1}, "give both rank and world_size, or none; got rank=1, world_size=None"),
        ({"rank": 0, "world_size": 4}, "the last batch of an epoch has 2 samples for 4 ranks; give drop_last=True"),
        ({"weights": [1.0]}, "weights must be one a sample: got 1 for 22 samples"),
        ({"weights": [-1.0] * SIZE}, "weights must be finite numbers >= 0"),
    ],
)
def test_bad_input(settings, sentence):
    with pytest.raises(TrialError) as caught:
        loader(**settings)
    assert sentence in str(caught.value)


def test_a_trial_s_loader_is_checked_when_it_is_used():
    """Before, `prepare` may arrange another batch, and then any share will do."""
    trial = Trial(Assignment(trial=1, lease=1, params={}, seed=3), channel=None)
    waiting = Loader(Augmented(), global_batch=4, trial=trial, rank=0, world_size=3)
    with pytest.raises(TrialError, match="global_batch must be a positive multiple of the world size 3, got 4"):
        next(iter(waiting))
    waiting.arrange(9)
    shares = [(len(batch), round(waiting.share, 3)) for batch in waiting]
    assert shares == [(3, 0.333), (3, 0.333), (2, 0.5)]


def test_data_sets_that_do_not_fit():
    with pytest.raises(TrialError, match="without samples"):
        Loader([], global_batch=1, seed=0)
    with pytest.raises(TrialError, match="got generator"):
        Loader((number for number in range(3)), global_batch=1, seed=0)


def test_a_loader_lets_go():
    """No circle of references keeps it, and with it its workers, alive."""
    gone = weakref.ref(one := loader())
    list(one)
    del one
    assert gone() is None


SCRIPT = """
import multiprocessing, os, signal, sys, time
from trainwright.train import Loader
loader = Loader(list(range(64)), global_batch=4, seed=0, workers=2)
batches = iter(loader)
next(batches)
for worker in multiprocessing.active_children():
    print(worker.pid, flush=True)
sys.stdin.readline()
print(sum(len(batch) for batch in batches), flush=True)
"""


def test_workers_outlive_the_signals_of_an_allocation():
    """SIGTERM from outside does not end a worker; its parent's does, so that the process ends without waiting."""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    workers = [int(process.stdout.readline()) for _ in range(2)]
    for worker in workers:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(worker, number)
    rest, _ = process.communicate("go on\n", timeout=120)
    assert (rest, process.returncode) == ("60\n", 0)
    deadline = time.monotonic() + 30
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(worker) for worker in workers)


def alive(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
