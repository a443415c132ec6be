"""A classifier with dropout, shuffled batches and a step scheduler."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright.integrations.lightning import TrialCallback


class Classifier(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self.net(x)
        self.log("val_loss", nn.functional.cross_entropy(out, y), sync_dist=True)
        self.log("val_acc", (out.argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


def loaders():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(120, 8, generator=g)
    data = TensorDataset(x, (x[:, :3] + 0.1 * torch.randn(120, 3, generator=g)).argmax(1))
    train_set, val_set = torch.utils.data.random_split(data, [90, 30], generator=g)
    return DataLoader(train_set, batch_size=16, shuffle=True), DataLoader(val_set, batch_size=30)


def train(trial):
    model = Classifier(trial.params["lr"])
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", callbacks=[TrialCallback(trial)], logger=False)
    trainer.fit(model, *loaders(), ckpt_path=trial.resume_from)
