"""An Optuna objective with pruning, as it is: it repeats what was not finished, and the study says so."""

import optuna
import torch
from torch import nn

import trainwright as tw


def objective(trial):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.suggest_float("lr", 1e-3, 1e-1, log=True))
    for epoch in range(4):
        for i in range(0, 64, 16):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[i : i + 16])[:, 0], x[i : i + 16].sum(1)).backward()
            optimizer.step()
        loss = nn.functional.mse_loss(model(x)[:, 0], x.sum(1)).item()
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


train = tw.from_optuna(objective)
