"""Early stopping and a checkpoint of the best model by Lightning's own callbacks, averaged weights, a cosine rate."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.lightning import TrialCallback


class Model(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))

    def training_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x + 0.1 * torch.randn_like(x)), y)

    def validation_step(self, batch):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}


def train(trial):
    x = torch.randn(80, 6, generator=torch.Generator().manual_seed(4))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    best = ModelCheckpoint(monitor="val_loss")
    trainer = L.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        callbacks=[EarlyStopping("val_loss", patience=2), best, TrialCallback(trial)],
    )
    loaders = DataLoader(data, 16, shuffle=True), DataLoader(data, 40)
    trainer.fit(Model(trial.params["lr"]), *loaders, ckpt_path=trial.resume_from)
