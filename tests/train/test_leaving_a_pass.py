"""A pass that is left before its end keeps its place: what resumes has the weights of what ran through, bit for bit."""

import contextlib
import os
import signal

import pytest
import torch
from torch.utils.data import TensorDataset

from trainwright.checkpoint import Manager
from trainwright.train import Loader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

STEPS, EPOCH = 17, 10  # of the whole training, and of an epoch
WAYS = ("break", "exception", "return", "signal")


class Left(Exception):
    """Ends a loop."""


def samples():
    return torch.randn(240, 5, generator=torch.Generator().manual_seed(1))


def loader(kind):
    return Loader(TensorDataset(samples()), global_batch=24, seed=3, workers=2 if kind == "workers" else 0)


class Training:
    """A linear model behind dropout, whose weights tell every batch, its order and every draw."""

    def __init__(self, kind, folder):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(5, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loader = loader(kind)
        self.manager = Manager(folder, model=self.model, optimizer=self.optimizer, loader=self.loader)

    @property
    def weights(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def until(self, stop, way="break", *, save_inside=False):
        """Train to step `stop`, and leave the pass there."""
        while self.manager.steps < stop:
            for (batch,) in self.loader:
                self.optimizer.zero_grad()
                self.model(batch).square().mean().backward()
                self.optimizer.step()
                if way == "signal" and save_inside and self.manager.steps + 1 == stop:
                    os.kill(os.getpid(), signal.SIGUSR1)  # the manager saves and leaves at the end of the step
                self.manager.step()
                if self.manager.steps < stop:
                    continue
                if save_inside:
                    self.manager.save(wait=True)
                if way == "return":
                    return
                if way == "exception":
                    raise Left
                if way == "signal":
                    os.kill(os.getpid(), signal.SIGALRM)
                break


@pytest.fixture
def alarm():
    """Set a handler of the user's own, which raises wherever the training is."""

    def leave(number, frame):
        raise Left

    before = signal.signal(signal.SIGALRM, leave)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def through(tmp_path_factory):
    """Return the weights of a training that ran through."""
    training = Training("map", tmp_path_factory.mktemp("through"))
    with training.manager:
        training.until(STEPS)
    return training.weights


@pytest.mark.parametrize("save_inside", [True, False], ids=["saved inside", "saved after"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("alarm")
def test_resumed_after_any_way_out(tmp_path, through, way, save_inside):
    """Within an epoch, at the last batch of one, and in the next: one training that leaves three times."""
    assert all(map(torch.equal, _left_and_resumed(tmp_path, "map", way, save_inside=save_inside), through))


def test_resumed_with_batches_fetched_ahead(tmp_path, through):
    found = _left_and_resumed(tmp_path, "workers", "break", save_inside=False)
    assert all(map(torch.equal, found, through))


def _left_and_resumed(folder, kind, way, *, save_inside):
    """Return the weights at the end."""
    for stop in (3, EPOCH, EPOCH + 4):
        training = Training(kind, folder)
        with training.manager as manager:
            manager.restore()
            with contextlib.suppress(Left, SystemExit):
                training.until(stop, way, save_inside=save_inside)
            assert manager.steps == stop
            if not save_inside:
                manager.save(wait=True)
    last = Training(kind, folder)
    with last.manager:
        last.manager.restore()
        last.until(STEPS)
    return last.weights


def test_the_place_is_that_of_the_batches_handed_out():
    """However often a pass is left, an epoch has each batch once, and ends behind the last one, by StopIteration."""
    whole = loader("map")
    expected = [[batch.tolist() for (batch,) in whole] for _ in range(2)]
    broken, seen = loader("map"), []
    for each in (1, 4, 2, 3):
        assert broken.epoch == 1
        for number, (batch,) in enumerate(broken, 1):
            seen.append(batch.tolist())
            if number == each:
                break
    assert seen == expected[0]
    assert broken.epoch == 1  # nobody has been told yet that this was the last one
    assert list(broken) == []
    assert broken.epoch == 2
    assert [batch.tolist() for (batch,) in broken] == expected[1]


def test_a_later_pass_goes_on_where_an_earlier_one_stands():
    """The earlier one has nothing more to give."""
    one = loader("map")
    earlier = iter(one)
    first = next(earlier)
    rest = list(one)
    assert list(earlier) == []
    assert one.epoch == 2
    assert [batch.tolist() for (batch,) in [first, *rest]] == [batch.tolist() for (batch,) in loader("map")]
