"""Optuna's samplers with several objectives behind ask and tell; a loss is a list. Grids go in as integer positions."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import optuna
from benchmarks.peers.columns import Column
from benchmarks.peers.with_optuna import Sampler

__all__ = ["METHODS", "Several"]


class Several(Sampler):
    """A sampler with its defaults and a study of several directions in memory."""

    def __init__(self, columns: Sequence[Column], seed: int, *, objectives: int = 1, sampler: str) -> None:
        super().__init__(columns, seed, sampler=sampler)
        made = getattr(optuna.samplers, sampler)(seed=seed)
        self._study = optuna.create_study(sampler=made, directions=["minimize"] * objectives)

    def tell(self, tokens: Sequence[Any], losses: Sequence[Any]) -> None:
        """Tell losses."""
        for trial, values in zip(tokens, losses, strict=True):
            self._study.tell(trial, values)


METHODS = {
    "several_optuna-tpe": partial(Several, sampler="TPESampler"),
    "several_optuna-nsga2": partial(Several, sampler="NSGAIISampler"),
}
