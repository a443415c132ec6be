"""An Optuna script as its user wrote it: a small network learns scikit-learn's digits."""

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

images, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
images = images.float() / 16


def objective(trial):
    width = trial.suggest_int("width", 16, 128, log=True)
    name = trial.suggest_categorical("optimizer", ["sgd", "adamw"])
    rate = trial.suggest_float("rate", 1e-3, 1e-1, log=True)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    if name == "sgd":
        momentum = trial.suggest_float("momentum", 0.0, 0.95)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for epoch in range(9):
        for rows in torch.randperm(1400).split(32):
            optimizer.zero_grad()
            cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = cross_entropy(model(images[1400:]), labels[1400:]).item()
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


if __name__ == "__main__":
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner())
    study.optimize(objective, n_trials=12)
    print(study.best_params)
