"""Two optimizers, stepped by hand: a small adversarial pair."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.lightning import TrialCallback


class Gan(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.automatic_optimization = False
        self.lr = lr
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        self.critic = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch):
        (real,) = batch
        first, second = self.optimizers()
        fake = self.generator(torch.randn(len(real), 2))
        loss = nn.functional.softplus(-self.critic(fake)).mean()
        self.toggle_optimizer(first)
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        gap = nn.functional.softplus(-self.critic(real)) + nn.functional.softplus(self.critic(fake.detach()))
        second.zero_grad()
        self.manual_backward(gap.mean())
        second.step()
        self.untoggle_optimizer(second)

    def validation_step(self, batch):
        (real,) = batch
        fake = self.generator(torch.linspace(-1, 1, 64).reshape(32, 2))
        self.log("gap", (fake.mean() - real.mean()).abs())

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.generator.parameters(), self.lr),
            torch.optim.Adam(self.critic.parameters(), self.lr),
        ]


def train(trial):
    real = TensorDataset(2 + torch.randn(64, 1, generator=torch.Generator().manual_seed(2)))
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", callbacks=[TrialCallback(trial)], logger=False)
    loaders = DataLoader(real, 16, shuffle=True), DataLoader(real, 64)
    trainer.fit(Gan(trial.params["lr"]), *loaders, ckpt_path=trial.resume_from)


OBJECTIVE = "min gap"
