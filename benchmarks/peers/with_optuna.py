"""Optuna's samplers behind ask and tell; runs in Optuna's own environment.

A grid column goes in as the integer position in its list, so that the sampler knows the order and sees the grid's own
spacing, or as a category of its values (`optuna-tpe-categorical`). Both were measured; the benchmarks quote the better
for Optuna, which is named `optuna-tpe`. `optuna-gp` is its Gaussian process, on integer positions too.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import optuna
from benchmarks.peers.columns import Column
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

__all__ = ["METHODS", "Sampler"]


class Sampler:
    """A sampler with its defaults in a study in memory, or in Optuna's journal file when `journal` names one."""

    def __init__(
        self,
        columns: Sequence[Column],
        seed: int,
        *,
        sampler: str = "TPESampler",
        categorical: bool = False,
        journal: str | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._columns = columns
        self._distributions = {column.name: _distribution(column, categorical=categorical) for column in columns}
        storage = None
        if journal is not None:
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend

            storage = JournalStorage(JournalFileBackend(journal))
        made = getattr(optuna.samplers, sampler)(seed=seed)
        self._study = optuna.create_study(sampler=made, storage=storage, direction="minimize")
        grids = "categories" if categorical else "integer positions"
        self.version = f"optuna {optuna.__version__}; {sampler} defaults; grids as {grids}"

    def load(self, rows: Sequence[list[float]], losses: Sequence[float]) -> None:
        """Add finished trials."""
        self._study.add_trials(
            [
                optuna.trial.create_trial(
                    params={
                        column.name: _typed(column, value) for column, value in zip(self._columns, row, strict=True)
                    },
                    distributions=self._distributions,
                    value=loss,
                )
                for row, loss in zip(rows, losses, strict=True)
            ]
        )

    def ask(self, count: int) -> list[tuple[Any, list[float]]]:
        """Propose rows; fixed distributions let the sampler see the whole space at once."""
        trials = [self._study.ask(self._distributions) for _ in range(count)]
        return [(trial, [trial.params[column.name] for column in self._columns]) for trial in trials]

    def tell(self, tokens: Sequence[Any], losses: Sequence[float]) -> None:
        """Tell losses."""
        for trial, loss in zip(tokens, losses, strict=True):
            self._study.tell(trial, loss)


def _distribution(column: Column, *, categorical: bool) -> BaseDistribution:
    if column.kind == "int":
        return IntDistribution(int(column.low), int(column.high))
    if column.numeric:
        return FloatDistribution(column.low, column.high, log=column.kind == "log_float")
    if column.kind == "choice" or categorical:
        # Categories are the positions, so that the answer needs no look-up; to the sampler they are only labels.
        return CategoricalDistribution(list(range(len(column.values))))
    return IntDistribution(0, len(column.values) - 1)


def _typed(column: Column, value: float) -> float:
    return value if column.kind in {"float", "log_float"} else int(value)


METHODS = {
    "optuna-tpe": Sampler,
    "optuna-cmaes": partial(Sampler, sampler="CmaEsSampler"),
    "optuna-tpe-categorical": partial(Sampler, categorical=True),
    "optuna-gp": partial(Sampler, sampler="GPSampler"),
}
