"""LoRA by PEFT: only the adapters are trained and saved."""

from peft import LoraConfig, TaskType, get_peft_model
from tiny_text import bert, sentences
from transformers import Trainer, TrainingArguments, set_seed

from trainwright.integrations.transformers import TrialCallback


def train(trial):
    set_seed(0)
    lora = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["query", "value"]
    )
    model = get_peft_model(bert(), lora)
    args = TrainingArguments(
        output_dir="out",
        learning_rate=trial.params["lr"],
        num_train_epochs=4,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        label_names=["labels"],
    )
    data, held_out = sentences(), sentences(32, seed=1)
    trainer = Trainer(model, args, train_dataset=data, eval_dataset=held_out, callbacks=[TrialCallback(trial)])
    trainer.train(resume_from_checkpoint=trial.resume_from)


OBJECTIVE = "min eval_loss"
