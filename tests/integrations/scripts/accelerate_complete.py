"""A project folder whose checkpoints accelerate names, a schedule, and metrics that are gathered."""

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from tiny_text import bert, sentences
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup

from trainwright.integrations.accelerate import epochs


def train(trial):
    config = ProjectConfiguration(project_dir="complete", automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", project_config=config)
    set_seed(42)
    train_loader = DataLoader(sentences(), shuffle=True, batch_size=16)
    eval_loader = DataLoader(sentences(30, seed=1), shuffle=False, batch_size=8)
    model = bert().to(accelerator.device)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=trial.params["lr"])
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=4, num_training_steps=len(train_loader) * 4
    )
    model, optimizer, train_loader, eval_loader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, lr_scheduler
    )
    for epoch in epochs(trial, accelerator, 4):
        model.train()
        for batch in train_loader:
            outputs = model(**batch)
            accelerator.backward(outputs.loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        model.eval()
        right = total = 0
        for batch in eval_loader:
            with torch.no_grad():
                outputs = model(**batch)
            predictions, references = accelerator.gather_for_metrics((outputs.logits.argmax(-1), batch["labels"]))
            right += int((predictions == references).sum())
            total += len(references)
        accelerator.print(f"epoch {epoch}:", right / total)
        trial.report(accuracy=right / total, loss=float(outputs.loss))
    accelerator.end_training()


OBJECTIVE = "max accuracy"
