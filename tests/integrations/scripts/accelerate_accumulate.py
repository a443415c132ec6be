"""Accumulated gradients, clipped, a scheduler that accelerate steps, and a seedable sampler."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.accelerate import epochs


def train(trial):
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, x.sum(1)), 16, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for _epoch in epochs(trial, accelerator, 4):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs + 0.01 * torch.randn_like(inputs))[:, 0], labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        with torch.no_grad():
            trial.report(val_loss=nn.functional.mse_loss(model(x)[:, 0], x.sum(1)))
