"""Two models that are trained in turn, one of them a PEFT adapter over a frozen part."""

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.accelerate import epochs


def train(trial):
    accelerator = Accelerator(cpu=True)
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))
    loader = DataLoader(TensorDataset(x, x[:, :2].sum(1)), 16, shuffle=True)
    base = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    adapted = get_peft_model(base, LoraConfig(r=2, target_modules=["0", "2"], lora_dropout=0.1))
    head = nn.Linear(4, 1)
    first = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], lr=trial.params["lr"])
    second = torch.optim.SGD(head.parameters(), lr=trial.params["lr"])
    adapted, head, first, second, loader = accelerator.prepare(adapted, head, first, second, loader)
    for _epoch in epochs(trial, accelerator, 4):
        adapted.train()
        for step, (inputs, labels) in enumerate(loader):
            optimizer = (first, second)[step % 2]
            loss = nn.functional.mse_loss(head(adapted(inputs))[:, 0], labels)
            accelerator.backward(loss)
            optimizer.step()
            first.zero_grad()
            second.zero_grad()
        adapted.eval()
        with torch.no_grad():
            trial.report(val_loss=nn.functional.mse_loss(head(adapted(x))[:, 0], x[:, :2].sum(1)))
