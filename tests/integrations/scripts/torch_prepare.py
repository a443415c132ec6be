"""Plain torch by `trial.prepare`: shuffled batches, dropout, a scheduler."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(trial):
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, x.sum(1)), 16, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    run = trial.prepare(model, optimizer, loader, schedule=schedule)
    for _epoch in trial.epochs(4):
        model.train()
        for inputs, labels in run.loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(run.model(inputs)[:, 0], labels).backward()
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            trial.report(val_loss=nn.functional.mse_loss(run.model(x)[:, 0], x.sum(1)))
