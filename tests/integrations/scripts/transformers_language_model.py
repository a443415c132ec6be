"""A causal language model, evaluated every few steps, with accumulated gradients."""

from tiny_text import gpt, texts
from transformers import Trainer, TrainingArguments

from trainwright.integrations.transformers import TrialCallback


def train(trial):
    args = TrainingArguments(
        output_dir="out",
        learning_rate=trial.params["lr"],
        max_steps=12,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(gpt(), args, train_dataset=texts(), eval_dataset=texts(12, seed=1))
    trainer.add_callback(TrialCallback(trial))
    trainer.train(resume_from_checkpoint=trial.resume_from)


OBJECTIVE = "min eval_loss"
