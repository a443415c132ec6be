"""Optuna's TPE with its pruners, over trials that report each epoch; runs in Optuna's own environment."""

import math
from collections.abc import Sequence
from typing import Any

import optuna
from benchmarks.peers.columns import Column

__all__ = ["METHODS", "PrunedTrials"]


class PrunedTrials:
    """The sampler's and the pruner's defaults, and the length of a training where the pruner asks for it."""

    def __init__(self, columns: Sequence[Column], seed: int, *, pruner: str, length: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._columns, self._length = columns, length
        pruners = optuna.pruners
        chosen = pruners.HyperbandPruner(max_resource=length) if pruner == "hyperband" else pruners.MedianPruner()
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=chosen)
        self._trials: dict[int, Any] = {}
        self.version = f"optuna {optuna.__version__}; TPESampler and {type(chosen).__name__} defaults"

    def start(self) -> tuple[int, list[float]]:
        """Return a new trial."""
        trial = self._study.ask()
        self._trials[trial.number] = trial
        return trial.number, [_suggest(trial, column) for column in self._columns]

    def report(self, number: int, epoch: int, loss: float) -> bool:
        """Report a loss; a trial that diverged has failed."""
        trial = self._trials[number]
        trial.report(loss, epoch)
        if not math.isfinite(loss):
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        elif epoch == self._length:
            self._study.tell(trial, loss)
        elif trial.should_prune():
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            return True
        return False


def _suggest(trial: Any, column: Column) -> float:
    if column.kind == "choice":
        return float(trial.suggest_categorical(column.name, range(len(column.values))))
    log = column.kind.startswith("log")
    if column.kind in {"int", "log_int"}:
        return float(trial.suggest_int(column.name, int(column.low), int(column.high), log=log))
    return float(trial.suggest_float(column.name, column.low, column.high, log=log))


def _hyperband(columns: Sequence[Column], seed: int, *, length: int) -> PrunedTrials:
    return PrunedTrials(columns, seed, pruner="hyperband", length=length)


def _median(columns: Sequence[Column], seed: int, *, length: int) -> PrunedTrials:
    return PrunedTrials(columns, seed, pruner="median", length=length)


METHODS = {"trials_optuna-hyperband": _hyperband, "trials_optuna-median": _median}
