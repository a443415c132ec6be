"""Lightning: a callback through which a `Trainer` reports to its trial, is pruned, and resumes bit for bit.

Lightning's own checkpoints lack the states of random generators, and are saved before a plateau scheduler steps. So
the callback saves when the next epoch begins (or training ends), when all of an epoch is over. It adds the generators,
and what is frozen: a callback such as `BackboneFinetuning` freezes all again when it is restored.
"""

import os
from pathlib import Path
from typing import Any

from trainwright.checkpoint.state.rng import capture_rng_state, restore_rng_state
from trainwright.errors import MissingExtra
from trainwright.train import Trial
from trainwright.train.assignment import select_metrics

with MissingExtra.instead_of_import_error("trainwright.integrations.lightning", "lightning", "lightning"):
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Checkpoint, LambdaCallback

__all__ = ["TrialCallback"]

_NODES = "PL_TRAINER_NUM_NODES"
_FROZEN = (("parameters", "requires_grad"), ("modules", "track_running_stats"))
"""What a callback freezes and unfreezes: of a module's parameters, and of its batch normalizations."""


class TrialCallback(Checkpoint):
    """Reports what `self.log` logged to the trial after each epoch, and saves the training before.

    `Trainer(callbacks=[TrialCallback(trial)])`, and `trainer.fit(model, ckpt_path=trial.resume_from)`. A `Checkpoint`
    to Lightning, so that it comes after all other callbacks. May end the trial in `fit`, quietly.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._trainer: Trainer | None = None
        # Called before all other callbacks, which already change the training for the epoch that begins.
        self._first = LambdaCallback(on_train_epoch_start=self._begin_epoch)
        # Measured in the epoch that is over, and not yet reported.
        self._measured: dict[str, float] | None = None
        self._reported = trial.checkpoint_with(self._write) is not None
        # Read from a checkpoint, and not yet restored.
        self._restored: dict[str, Any] | None = None
        if trial.world_size > 1:
            # Lightning's default of that argument: each process of the trial is a node to the Trainer made next.
            os.environ[_NODES] = str(trial.world_size)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take note of the trainer, which writes the checkpoints."""
        del pl_module, stage
        os.environ.pop(_NODES, None)
        self._trainer = trainer
        callbacks = vars(trainer)["callbacks"]
        if self._first not in callbacks:
            vars(trainer)["callbacks"] = [self._first, *callbacks]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take note of what was measured in the epoch, if it was evaluated."""
        del pl_module
        measured = trainer.callback_metrics
        # With `check_val_every_n_epoch` only some epochs are evaluated; the metrics of the last one stay.
        every = trainer.check_val_every_n_epoch or 1
        if trainer.enable_validation and (trainer.current_epoch + 1) % every:
            return
        where = f"epoch {trainer.current_epoch + 1} of this Trainer"
        self._measured = select_metrics(
            self._trial.assignment.metrics,
            measured,
            where,
            "log it in validation_step by self.log(name, value), and validate each epoch",
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the last epoch."""
        del pl_module
        self._report(trainer, trainer.current_epoch)
        if not self._reported:
            # Raises: no epoch was evaluated.
            select_metrics(
                self._trial.assignment.metrics, {}, "this training", "let it train and validate at least one epoch"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all generators, of each rank, and what is frozen."""
        own = {"global": capture_rng_state(), "loaders": [g.get_state() for g in self._loader_generators()]}
        states = [own]
        if self._trial.world_size > 1:
            states = [{}] * self._trial.world_size
            torch.distributed.all_gather_object(states, own)
        module = getattr(self._trainer, "lightning_module", torch.nn.Module())
        frozen = [[getattr(each, flag, None) for each in getattr(module, kind)()] for kind, flag in _FROZEN]
        return {"generators": states, "frozen": frozen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training begins: what comes before freezes parameters and draws numbers as well."""
        self._restored = state_dict

    def _begin_epoch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the epoch before, or restore what Lightning does not."""
        if self._restored is not None:
            # An epoch begins here as any other: Lightning takes the first one after a restart for the rest of one,
            # skips its validation, and does not let a plateau scheduler step after it.
            trainer.fit_loop.restarting = False
            for (kind, flag), values in zip(_FROZEN, self._restored["frozen"], strict=True):
                for each, value in zip(getattr(pl_module, kind)(), values, strict=True):
                    # Whatever has no such flag was noted as None.
                    if value is not None:
                        setattr(each, flag, value)
            self._restore_generators(trainer, self._restored["generators"])
            self._restored = None
        self._report(trainer, trainer.current_epoch)

    def _report(self, trainer: Trainer, epoch: int) -> None:
        measured, self._measured = self._measured, None
        if measured is not None:
            self._reported = True
            self._trial.report(epoch=epoch, step=trainer.global_step, **measured)

    def _write(self, path: Path) -> None:
        if self._trainer is not None:
            self._trainer.save_checkpoint(path)

    def _restore_generators(self, trainer: Trainer, states: list[dict[str, Any]]) -> None:
        """Go on with the draws of the interrupted run. On another number of ranks each has new ones."""
        if len(states) != self._trial.world_size:
            return
        own = states[self._trial.rank]
        for generator, state in zip(self._loader_generators(), own["loaders"], strict=False):
            generator.set_state(state)
        restore_rng_state(own["global"])
        # The order of the epoch was drawn when the loader was set up, before the generators were back: draw again.
        fetcher = getattr(trainer.fit_loop, "_data_fetcher", None)
        if fetcher is not None:
            iter(fetcher)

    def _loader_generators(self) -> list[torch.Generator]:
        """Return the generators of the training loaders, each once."""
        loop = getattr(self._trainer, "fit_loop", None)
        loaders = getattr(getattr(loop, "_combined_loader", None), "flattened", ())
        found = [
            generator
            for loader in loaders
            for holder in (loader, getattr(loader, "sampler", None))
            if isinstance(generator := getattr(holder, "generator", None), torch.Generator)
        ]
        return list({id(generator): generator for generator in found}.values())
