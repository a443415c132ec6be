"""Text classification: dropout, linear warm-up, evaluation each epoch."""

from tiny_text import bert, sentences
from transformers import Trainer, TrainingArguments

from trainwright.integrations.transformers import TrialCallback


def train(trial):
    args = TrainingArguments(
        output_dir="out",
        learning_rate=trial.params["lr"],
        num_train_epochs=4,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        warmup_steps=4,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data, held_out = sentences(), sentences(32, seed=1)
    trainer = Trainer(bert(), args, train_dataset=data, eval_dataset=held_out, callbacks=[TrialCallback(trial)])
    trainer.train(resume_from_checkpoint=trial.resume_from)


OBJECTIVE = "min eval_loss"
