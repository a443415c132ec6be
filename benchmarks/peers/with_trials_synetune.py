"""Syne Tune's model-based multi-fidelity methods, MOBSTER and DyHPO; runs in Syne Tune's own environment.

Both are asked through the calls that Syne Tune's own tuner makes of a scheduler, with their defaults; DyHPO's authors
ask for rungs at every epoch, which is how it is set here.
"""

import datetime as dt
import logging
import math
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.peers.columns import Column
from syne_tune.backend.trial_status import Trial
from syne_tune.config_space import choice, lograndint, loguniform, randint, uniform
from syne_tune.optimizer.baselines import MOBSTER, DyHPO

__all__ = ["METHODS", "SyneTuneTrials"]

_LENGTH = "epochs"


class SyneTuneTrials:
    """One scheduler; a loss that is not finite is told as the greatest finite one so far."""

    def __init__(self, columns: Sequence[Column], seed: int, *, method: str, length: int) -> None:
        logging.disable(logging.WARNING)
        self._columns, self._length = columns, length
        space = {**{column.name: _domain(column) for column in columns}, _LENGTH: length}
        common = {
            "metric": "loss",
            "mode": "min",
            "resource_attr": "epoch",
            "max_resource_attr": _LENGTH,
            "random_seed": seed,
        }
        if method == "mobster":
            self._scheduler: Any = MOBSTER(space, search_options={"debug_log": False}, **common)
        else:
            self._scheduler = DyHPO(space, grace_period=1, rung_increment=1, **common)
        self._trials: list[Trial] = []
        self._worst = 0.0
        self.version = f"syne-tune {version('syne-tune')}; {type(self._scheduler).__name__} defaults"

    def start(self) -> tuple[int, list[float]]:
        """Return the trial that the scheduler suggests."""
        suggestion = self._scheduler.suggest(len(self._trials))
        if suggestion.spawn_new_trial_id:
            trial = Trial(len(self._trials), suggestion.config, dt.datetime.now())  # noqa: DTZ005 - as Syne Tune does
            self._trials.append(trial)
            self._scheduler.on_trial_add(trial)
        else:
            trial = self._trials[suggestion.checkpoint_trial_id]
        return trial.trial_id, [float(trial.config[column.name]) for column in self._columns]

    def report(self, number: int, epoch: int, loss: float) -> bool:
        """Report a loss; the scheduler may stop or pause the trial."""
        if math.isfinite(loss):
            self._worst = max(self._worst, loss)
        trial, result = self._trials[number], {"loss": loss if math.isfinite(loss) else self._worst, "epoch": epoch}
        decision = self._scheduler.on_trial_result(trial, result)
        if epoch == self._length:
            self._scheduler.on_trial_complete(trial, result)
            return False
        if decision == "CONTINUE":
            return True
        if decision == "STOP":
            self._scheduler.on_trial_remove(trial)
        return False


def _domain(column: Column) -> Any:
    if column.kind == "choice":
        return choice(list(range(len(column.values))))
    if column.kind in {"int", "log_int"}:
        return (lograndint if column.kind == "log_int" else randint)(int(column.low), int(column.high))
    return (loguniform if column.kind == "log_float" else uniform)(column.low, column.high)


def _mobster(columns: Sequence[Column], seed: int, *, length: int) -> SyneTuneTrials:
    return SyneTuneTrials(columns, seed, method="mobster", length=length)


def _dyhpo(columns: Sequence[Column], seed: int, *, length: int) -> SyneTuneTrials:
    return SyneTuneTrials(columns, seed, method="dyhpo", length=length)


METHODS = {"trials_synetune-mobster": _mobster, "trials_synetune-dyhpo": _dyhpo}
