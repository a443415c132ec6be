"""A backbone that is unfrozen after two epochs, whose learning rate then grows; its head is trained all the time."""

import lightning as L
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from lightning_classifier import loaders
from torch import nn

from trainwright.integrations.lightning import TrialCallback


class Tuned(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 3)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam((p for p in self.parameters() if p.requires_grad), lr=self.lr)


def train(trial):
    trainer = L.Trainer(
        max_epochs=6,
        accelerator="cpu",
        logger=False,
        callbacks=[BackboneFinetuning(unfreeze_backbone_at_epoch=2, train_bn=False), TrialCallback(trial)],
    )
    trainer.fit(Tuned(trial.params["lr"]), *loaders(), ckpt_path=trial.resume_from)
