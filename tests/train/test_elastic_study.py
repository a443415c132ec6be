"""A study whose trials have two processes each, on real data: the curve of one process, also after a kill."""

import os
import signal

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import trainwright as tw

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


def study(folder, devices, *, accident=False):
    space = tw.Space(rate=tw.Float(0.009, 0.011), accident=tw.Constant(accident))
    made = tw.Study(space, "min loss", directory=folder, seed=3, searcher=tw.RandomSearcher())
    scheduler = tw.Scheduler(tw.FixedEpochs(5), tw.Fixed(devices))
    made.run(train, trials=1, scheduler=scheduler, engine=tw.Local(workers=2), progress=False)
    (trial,) = made.trials
    return trial


def test_digits_on_two_processes(tmp_path):
    """One and two processes, undisturbed and after the kill of a rank, report the same losses; one checkpoint each."""
    one, two, killed = (
        study(tmp_path / name, devices, accident=name == "killed")
        for name, devices in (("one", 1), ("two", 2), ("killed", 2))
    )
    for name in ("devices", "start"):
        assert [trial.reports[5].metrics[name] for trial in (one, two, killed)] == [1, 2, 2]
    assert one.reports[5].metrics["accuracy"] > 0.85
    for epoch, report in one.reports.items():
        assert two.reports[epoch].metrics["loss"] == pytest.approx(report.metrics["loss"], abs=1e-10)
        assert killed.reports[epoch].metrics["loss"] == two.reports[epoch].metrics["loss"], "equal to the last bit"
    assert [len(trial.leases) for trial in (one, two, killed)] == [1, 1, 2]
    assert killed.blamed_losses == 1
    assert all(len(trial.checkpoints) == 5 for trial in (one, two))
