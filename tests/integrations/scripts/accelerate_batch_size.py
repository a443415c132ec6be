"""The batch size is halved while memory runs out, and the training begins anew."""

import torch
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.accelerate import epochs


def train(trial):
    accelerator = Accelerator(cpu=True)
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))

    @find_executable_batch_size(starting_batch_size=32)
    def inner(batch_size):
        accelerator.free_memory()
        loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size, shuffle=True)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"])
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for _ in epochs(trial, accelerator, 4):
            for a, b in loader:
                if len(a) > 16:
                    raise RuntimeError("CUDA out of memory.")
                accelerator.backward(nn.functional.mse_loss(model(a)[:, 0], b))
                optimizer.step()
                optimizer.zero_grad()
            trial.report(val_loss=nn.functional.mse_loss(model(x)[:, 0], x.sum(1)))

    inner()
