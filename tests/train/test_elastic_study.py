"""Studies whose trials have several processes, on real data: the curve of one process, also after a kill."""

import os
import signal

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import trainwright as tw
from eager import Eager

pytestmark = pytest.mark.slow


def train(trial):
    """Learn the digits in float64; rank 1 of the first lease dies in epoch 3 if it is told to."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels / 16), torch.from_numpy(labels)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.params["rate"])
    loader = DataLoader(
        TensorDataset(x[:1500], y[:1500]), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    run = trial.prepare(model, optimizer, loader, loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]))
    for epoch in trial.epochs():
        for number, batch in enumerate(run.loader):
            if (epoch, number, trial.rank, trial.assignment.lease) == (3, 5, 1, 1) and trial.params["accident"]:
                os.kill(os.getpid(), signal.SIGKILL)
            run.step(batch)
        with torch.no_grad():
            scores = run.model(x[1500:])
        accuracy = (scores.argmax(1) == y[1500:]).double().mean()
        devices = {"devices": trial.devices, "start": trial.assignment.start_devices}
        trial.report(loss=cross_entropy(scores, y[1500:]), accuracy=accuracy, **devices)


def study(folder, policy, *, accident=False, workers=2):
    space = tw.Space(rate=tw.Float(0.009, 0.011), accident=tw.Constant(accident))
    made = tw.Study(space, "min loss", directory=folder, seed=3, searcher=tw.RandomSearcher())
    scheduler = tw.Scheduler(tw.ASHA(max_epochs=5, eta=2), policy)  # rungs after epochs 1, 2 and 4
    made.run(train, trials=1, scheduler=scheduler, engine=tw.Local(workers=workers), progress=False)
    (trial,) = made.trials
    return trial


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Return the trial on one process, undisturbed."""
    return study(tmp_path_factory.mktemp("one") / "study", tw.Fixed(1))


def losses(trial):
    return [trial.reports[epoch].metrics["loss"] for epoch in range(1, 6)]


def devices(trial):
    return [trial.reports[epoch].metrics["devices"] for epoch in range(1, 6)]


def test_two_processes(tmp_path, one):
    """Undisturbed and after the kill of a rank: the losses of one process, and a checkpoint for each report."""
    two, killed = (study(tmp_path / str(dies), tw.Fixed(2), accident=dies) for dies in (False, True))
    assert one.reports[5].metrics["accuracy"] > 0.85
    assert [trial.reports[5].metrics["start"] for trial in (one, two, killed)] == [1, 2, 2]
    assert devices(two) == devices(killed) == [2] * 5
    assert losses(two) == pytest.approx(losses(one), abs=1e-10)
    assert losses(killed) == losses(two), "equal to the last bit"
    assert [len(trial.leases) for trial in (one, two, killed)] == [1, 1, 2]
    assert killed.blamed_losses == 1
    assert all(len(trial.checkpoints) == 5 for trial in (one, two))


def test_a_winner_that_grows(tmp_path, one):
    """From one process to two and to four, by the policy, in the midst of its training: the losses of one process."""
    grown = study(tmp_path / "study", Eager(), workers=4)
    assert devices(grown) == [1, 2, 4, 4, 4]
    assert losses(grown) == pytest.approx(losses(one), abs=1e-10)
