"""A loader with a generator of its own, averaged weights registered for checkpoints, two evaluations gathered."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.accelerate import epochs


class Average:
    """An average of the weights, which accelerate keeps because it is registered."""

    def __init__(self, model):
        self.model, self.weights = model, [p.detach().clone() for p in model.parameters()]

    def update(self):
        for weight, parameter in zip(self.weights, self.model.parameters(), strict=True):
            weight.lerp_(parameter.detach(), 0.1)

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


def train(trial):
    accelerator = Accelerator(cpu=True)
    x = torch.randn(80, 3, generator=torch.Generator().manual_seed(2))
    y = x.prod(1)
    g = torch.Generator().manual_seed(7)
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True, generator=g)
    held_out = DataLoader(TensorDataset(x, y), 40)
    model = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    average = Average(model)
    accelerator.register_for_checkpointing(average)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    for _epoch in epochs(trial, accelerator, 4):
        for inputs, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs)[:, 0], labels))
            optimizer.step()
            average.update()
        found = [accelerator.gather_for_metrics((model(a)[:, 0] - b).square()) for a, b in held_out]
        drift = sum((w - p).abs().sum() for w, p in zip(average.weights, model.parameters(), strict=True))
        trial.report(val_loss=torch.cat(found).mean(), drift=drift)
