"""Accumulated gradients, clipped; validation in every second epoch only, so that only these are reported."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.lightning import TrialCallback


class Model(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def training_step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.net(x)[:, 0], y)

    def validation_step(self, batch):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x)[:, 0], y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def train(trial):
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1))
    trainer = L.Trainer(
        max_epochs=6,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        check_val_every_n_epoch=2,
        logger=False,
        callbacks=[TrialCallback(trial)],
    )
    loaders = DataLoader(data, 8, shuffle=True), DataLoader(data, 48)
    trainer.fit(Model(trial.params["lr"]), *loaders, ckpt_path=trial.resume_from)
