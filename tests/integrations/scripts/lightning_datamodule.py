"""A data module whose loader has a generator of its own, and a scheduler that waits for a plateau."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.lightning import TrialCallback


class Waves(L.LightningDataModule):
    def setup(self, stage):
        x = torch.linspace(-3, 3, 128)[:, None]
        self.points = TensorDataset(x, torch.sin(x))

    def train_dataloader(self):
        return DataLoader(self.points, 16, shuffle=True, generator=torch.Generator().manual_seed(3))

    def val_dataloader(self):
        return DataLoader(self.points, 64)


class Regressor(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x + 0.01 * torch.randn_like(x)), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


def train(trial):
    trainer = L.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[TrialCallback(trial)],
    )
    trainer.fit(Regressor(trial.params["lr"]), datamodule=Waves(), ckpt_path=trial.resume_from)
