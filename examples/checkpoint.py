"""A training loop that is stopped in the middle of an epoch: the same command resumes it, bit for bit."""

import signal
import sys

import torch
from torch import nn

import trainwright as tw

folder, stop_at = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0

tw.train.seed_all(0)
x = torch.linspace(-3, 3, 256)[:, None]
model = nn.Sequential(nn.Linear(1, 64), nn.Dropout(0.1), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = tw.train.Loader(torch.utils.data.TensorDataset(x, torch.sin(x)), global_batch=32, seed=0)

with tw.checkpoint.Manager(folder, model=model, optimizer=optimizer, loader=loader) as manager:
    manager.restore()
    print(f"begins after step {manager.steps}, in epoch {loader.epoch}")
    for epoch in range(loader.epoch, 6):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if manager.steps + 1 == stop_at:
                signal.raise_signal(signal.SIGTERM)  # as a batch system does before it kills
            manager.step()
        print(f"epoch {epoch}: {loss.item():.6f}")
    manager.save(wait=True)
