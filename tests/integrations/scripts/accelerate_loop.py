"""A plain loop with accelerate: dropout, shuffled batches."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.accelerate import epochs


def train(trial):
    accelerator = Accelerator(cpu=True)
    x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 16, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.params["lr"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _epoch in epochs(trial, accelerator, 4):
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            trial.report(val_loss=nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()))
