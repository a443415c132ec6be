"""A metric of the user's own, maximised, and the best model loaded at the end."""

from tiny_text import bert, sentences
from transformers import Trainer, TrainingArguments

from trainwright.integrations.transformers import TrialCallback


def accuracy(predictions):
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


def train(trial):
    args = TrainingArguments(
        output_dir="out",
        learning_rate=trial.params["lr"],
        num_train_epochs=4,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        lr_scheduler_type="cosine",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        bert(),
        args,
        train_dataset=sentences(),
        eval_dataset=sentences(32, seed=1),
        compute_metrics=accuracy,
        callbacks=[TrialCallback(trial)],
    )
    trainer.train(resume_from_checkpoint=trial.resume_from)
    trainer.evaluate()


OBJECTIVE = "max eval_accuracy"
