"""A study on Ray whose winner grows from one process to two and four on real data, also when a process is killed."""

import os
import signal

import pytest

import trainwright as tw
from eager import Eager
from trainwright.engine.ray.engine import Ray

pytestmark = [
    pytest.mark.slow,
    pytest.mark.outside("Ray"),
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("cluster"),
]


def train(trial):
    """Learn the digits in float64; a rank of the second lease dies in epoch 3 if it is told to."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels / 16), torch.from_numpy(labels)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=64, shuffle=True, generator=order)
    run = trial.prepare(model, optimizer, loader, loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]))
    for epoch in trial.epochs():
        for number, batch in enumerate(run.loader):
            last = trial.rank == trial.world_size - 1
            if trial.params["accident"] and (epoch, number) == (3, 5) and last and trial.assignment.lease < 4:
                os.kill(os.getpid(), signal.SIGKILL)
            run.step(batch)
        with torch.no_grad():
            scores = run.model(x[1500:])
        trial.report(loss=cross_entropy(scores, y[1500:]), devices=trial.devices)


def grown(folder, policy, *, accident=False):
    space = tw.Space(rate=tw.Float(0.0, 1.0), accident=tw.Constant(accident))
    study = tw.Study(space, "min loss", directory=folder, seed=3, searcher=tw.RandomSearcher())
    scheduler = tw.Scheduler(tw.ASHA(max_epochs=5, eta=2), policy)  # rungs after epochs 1, 2 and 4
    study.run(train, trials=1, scheduler=scheduler, engine=Ray(workers=4, start_seconds=600), progress=False)
    (trial,) = study.trials
    return trial


def curve(trial, metric="loss"):
    return [trial.reports[epoch].metrics[metric] for epoch in range(1, 6)]


def test_a_winner_grows_and_its_curve_is_that_of_one_process(tmp_path):
    one = grown(tmp_path / "one", tw.Fixed(1))
    policy = Eager()
    undisturbed, killed = (grown(tmp_path / str(dies), policy, accident=dies) for dies in (False, True))
    assert curve(undisturbed, "devices") == [1, 2, 4, 4, 4]
    assert curve(undisturbed) == pytest.approx(curve(one), abs=1e-10)
    assert len(killed.leases) > len(undisturbed.leases)
    assert curve(killed) == pytest.approx(curve(one), abs=1e-10)
