"""A Trainer with a loss of its own, an optimizer given to it, and a model that no library made."""

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from trainwright.integrations.transformers import TrialCallback


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 10), nn.GELU(), nn.Dropout(0.2), nn.Linear(10, 1))

    def forward(self, x, labels=None):
        out = self.layers(x)[:, 0]
        return {"loss": nn.functional.huber_loss(out, labels), "out": out}


class HuberTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        loss = out["loss"] + 0.001 * sum(p.square().sum() for p in model.parameters())
        return (loss, out) if return_outputs else loss


def train(trial):
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(5))
    rows = [{"x": row, "labels": row.sum()} for row in x]
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    args = TrainingArguments(
        output_dir="out",
        num_train_epochs=4,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = HuberTrainer(
        model,
        args,
        train_dataset=rows[:48],
        eval_dataset=rows[48:],
        optimizers=(optimizer, schedule),
        callbacks=[TrialCallback(trial)],
    )
    trainer.train(resume_from_checkpoint=trial.resume_from)


OBJECTIVE = "min eval_loss"
