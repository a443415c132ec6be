"""A study that is trained over many jobs. An epoch takes as many seconds more as the file DIRECTORY.pace says.

A trial that comes to its end writes its weights to DIRECTORY.weights-NUMBER, to the last bit.
"""

import time
from pathlib import Path

from small_study import Momentum, begun

__all__ = ["train"]


def train(trial):
    import torch

    directory = trial.assignment.directory
    pace = Path(f"{directory}.pace")
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = Momentum(model.parameters(), trial.params["lr"])
    run = trial.prepare(model, optimizer, loss=lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean())
    for epoch in trial.epochs():
        if trial.rank == 0:
            begun(trial, epoch)
        if pace.exists():
            time.sleep(float(pace.read_text()))
        trial.report(loss=run.step(torch.rand(16, 2)).item())
    if trial.rank == 0:
        weights = [weight.detach().tolist() for weight in model.parameters()]
        Path(f"{directory}.weights-{trial.number}").write_text(repr(weights))
