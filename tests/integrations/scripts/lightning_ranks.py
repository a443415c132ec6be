"""Lightning's DDP in a trial of two processes: each is a node of one device."""

import lightning as L
from lightning_classifier import Classifier, loaders

from trainwright.integrations.lightning import TrialCallback


def train(trial):
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        strategy="ddp",
        num_nodes=trial.world_size,
        logger=False,
        callbacks=[TrialCallback(trial)],
    )
    trainer.fit(Classifier(trial.params["lr"]), *loaders(), ckpt_path=trial.resume_from)
