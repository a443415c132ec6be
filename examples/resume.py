"""A trial whose process is killed resumes after its last reported epoch, with the same result."""

import os
import signal
from pathlib import Path

import torch
from torch import nn

import trainwright as tw


def train(trial: tw.Trial) -> None:
    torch.manual_seed(0)  # so that two trials of equal settings are equal
    x = torch.linspace(-3, 3, 256)[:, None]
    dataset = torch.utils.data.TensorDataset(x, torch.sin(x))
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["rate"])
    run = trial.prepare(model, optimizer, loader, loss=loss_of)
    for epoch in trial.epochs(6):
        if epoch == 4 and trial.params["accident"] and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)  # as a batch system does, or the kernel
        for batch in run.loader:
            run.step(batch)
        with torch.no_grad():
            mse = nn.functional.mse_loss(model(x), torch.sin(x)).item()
        print(f"epoch {epoch}: {mse:.6f}")
        trial.report(mse=mse)  # saves a checkpoint of this epoch first


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


if __name__ == "__main__":
    space = tw.Space(rate=tw.Choice(0.01), accident=tw.Choice(False, True))
    study = tw.Study(space, objectives="min mse", directory="runs/killed", seed=0)
    study.run(train, trials=2, searcher=tw.GridSearcher(), engine=tw.Local(workers=2), progress=False)
    for trial in study.trials:
        print(f"trial {trial.number}: {len(trial.leases)} runs, mse {trial.values['mse']:.6f}")
    print("equal to the last bit:", study.trials[0].values == study.trials[1].values)
