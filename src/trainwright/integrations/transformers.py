"""Hugging Face's `Trainer`: a callback by which it reports to its trial, is pruned, and resumes bit for bit."""

import os
import shutil
from copy import copy
from pathlib import Path
from typing import Any

from trainwright.engine import Local
from trainwright.errors import MissingExtra, TrialMisuse
from trainwright.space import Space
from trainwright.study import Study
from trainwright.train import Trial
from trainwright.train.assignment import select_metrics

with MissingExtra.instead_of_import_error("trainwright.integrations.transformers", "transformers", "transformers"):
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import BestRun

__all__ = ["TrialCallback", "hyperparameter_search"]


class TrialCallback(TrainerCallback):
    """Reports each evaluation of a `Trainer` to the trial, after a checkpoint of the Trainer's own.

    `Trainer(..., callbacks=[TrialCallback(trial)])`, and `trainer.train(resume_from_checkpoint=trial.resume_from)`. The
    Trainer's output goes into the trial's folder. Epochs count as reported; evaluations by steps are counted instead.
    May end the trial in `train`, quietly.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._saves = trial.assignment.directory is not None
        self._training = False
        # Of evaluations since the last report.
        self._measured: dict[str, Any] = {}
        self._saved: Path | None = None
        self._retains_best = False
        trial.checkpoint_with(self._write)

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Let the Trainer write into the trial's folder, when this callback says so."""
        del state, control
        if str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "no":
            raise TrialMisuse(
                "TrialCallback: this Trainer evaluates nothing (eval_strategy='no'), so the study would never see its "
                "objective; give TrainingArguments(eval_strategy='epoch') and Trainer(eval_dataset=...)"
            )
        if self._saves:
            args.output_dir = str(self._trial.folder / "trainer")
            args.save_only_model = False
            self._retains_best = args.load_best_model_at_end
            if not self._retains_best:
                # Saved is what is reported; other checkpoints would only be in the way.
                args.save_strategy = type(args.save_strategy)("no")

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take note that evaluations count from here on. A callback that was added later is set up now."""
        self._training = True
        self.on_init_end(args, state, control)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take note that what is evaluated after training is the user's own affair."""
        del args, state, control
        self._training = False

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Ask for a checkpoint of what was evaluated; `on_save` reports it."""
        # `eval_on_start` measures an untrained model: no epoch.
        if self._training and state.global_step:
            self._measured.update(metrics or {})
            control.should_save = self._saves or control.should_save
            # Without checkpoints the report comes with the last of the data sets that hold the objectives.
            if not self._saves and self._measured.keys() >= set(self._trial.assignment.metrics):
                self._report(args, state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report what was evaluated, now that its checkpoint is there."""
        del control
        self._saved = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if self._saves and self._measured:
            self._report(args, state)

    def _report(self, args: TrainingArguments, state: TrainerState) -> None:
        measured, self._measured = self._measured, {}
        metrics = select_metrics(
            self._trial.assignment.metrics,
            measured,
            "the Trainer's evaluation",
            "name one of them in the study, such as objectives='min eval_loss', or return it from compute_metrics",
        )
        by_epoch = str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "epoch"
        epoch = round(state.epoch or 0) if by_epoch else self._trial.next_epoch
        self._trial.report(epoch=epoch, step=state.global_step, **metrics)

    def _write(self, path: Path) -> None:
        """Take over the checkpoint that the Trainer has just written; all ranks have written their part of it."""
        if self._trial.rank > 0 or self._saved is None:
            return
        if self._retains_best:
            # The Trainer itself loads one of them at the end: both names hold the same files.
            shutil.copytree(self._saved, path, copy_function=_link)
        else:
            self._saved.rename(path)


def hyperparameter_search(
    trainer: Trainer,
    space: Space,
    objective: str = "min eval_loss",
    *,
    n_trials: int = 20,
    directory: str | Path | None = None,
    seed: int = 0,
    **run: Any,
) -> BestRun:
    """Search the arguments of a `Trainer` that makes its model by `model_init`; return the best run.

    The space names fields of its `TrainingArguments`; others are for `model_init(params)`. Trials run one after another
    in this process; with a `directory` the same call resumes. `run` goes to `Study.run`: `scheduler`, `searcher`, ...
    """
    if trainer.model_init is None:
        raise TrialMisuse(
            "hyperparameter_search: this Trainer has one model, which a second trial would train on; give "
            "Trainer(model_init=function) in the place of a model"
        )
    usual = trainer.args

    def train(trial: Trial) -> None:
        arguments = {name: value for name, value in trial.params.items() if hasattr(usual, name)}
        trainer.args = copy(usual)
        for name, value in arguments.items():
            setattr(trainer.args, name, value)
        trainer._train_batch_size = trainer.args.train_batch_size  # noqa: SLF001 -- it reads the size once, when made
        callback = TrialCallback(trial)
        trainer.add_callback(callback)
        try:
            # With `trial` the model is made from the trial's parameters.
            found = trial.resume_from
            trainer.train(None if found is None else str(found), trial=dict(trial.params))
        finally:
            trainer.remove_callback(callback)
            trainer.args = usual

    with Study(space, objective, directory=directory, seed=seed) as study:
        study.run(train, trials=n_trials, **{"engine": Local(workers=0), **run})
        best = study.best
        value = best.values[study.state.objectives[0].metric]
        return BestRun(run_id=str(best.number), objective=value, hyperparameters=dict(best.params))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        # A file system without hard links.
        shutil.copy2(source, target)
