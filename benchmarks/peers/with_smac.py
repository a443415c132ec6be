"""SMAC3's default for hyperparameters (a random forest with expected improvement) behind ask and tell.

Runs in SMAC's own environment. SMAC sizes its initial design by the budget (at most a quarter of it), so it is told
the budget. Grid columns go in as integer positions, choices as categories.
"""

import logging
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.peers.columns import Column
from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, Float, Integer
from smac import HyperparameterOptimizationFacade, Scenario
from smac.runhistory.dataclasses import TrialInfo, TrialValue

__all__ = ["METHODS", "Smac"]


class Smac:
    """The facade's defaults for an objective that is the same at every evaluation, as its ask and tell need."""

    def __init__(self, columns: Sequence[Column], seed: int, *, evaluations: int = 100) -> None:
        self._columns = columns
        space = ConfigurationSpace(seed=seed)
        space.add([_parameter(column) for column in columns])
        self._space = space
        self._folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            space, deterministic=True, n_trials=evaluations, seed=seed, output_directory=self._folder.name
        )
        self._search = HyperparameterOptimizationFacade(
            scenario, _never_called, overwrite=True, logging_level=logging.ERROR
        )
        self.version = f"smac {version('smac')}; HyperparameterOptimizationFacade defaults; budget {evaluations}"

    def load(self, rows: Sequence[list[float]], losses: Sequence[float]) -> None:
        """Tell finished trials."""
        for row, loss in zip(rows, losses, strict=True):
            values = {column.name: _typed(column, value) for column, value in zip(self._columns, row, strict=True)}
            configuration = self._space.get_default_configuration()
            for name, value in values.items():
                configuration[name] = value
            self._search.tell(TrialInfo(configuration, seed=0), TrialValue(cost=loss))

    def ask(self, count: int) -> list[tuple[Any, list[float]]]:
        """Propose rows."""
        asked = [self._search.ask() for _ in range(count)]
        return [(info, [_number(column, info.config[column.name]) for column in self._columns]) for info in asked]

    def tell(self, tokens: Sequence[Any], losses: Sequence[float]) -> None:
        """Tell losses."""
        for info, loss in zip(tokens, losses, strict=True):
            self._search.tell(info, TrialValue(cost=loss))


def _parameter(column: Column) -> Any:
    if column.kind == "choice":
        return CategoricalHyperparameter(column.name, [f"c{position}" for position in range(len(column.values))])
    if column.kind == "ordinal":
        return Integer(column.name, (0, len(column.values) - 1))
    if column.kind == "int":
        return Integer(column.name, (int(column.low), int(column.high)))
    return Float(column.name, (column.low, column.high), log=column.kind == "log_float")


def _number(column: Column, value: Any) -> float:
    return int(value[1:]) if column.kind == "choice" else float(value)


def _typed(column: Column, value: float) -> Any:
    if column.kind == "choice":
        return f"c{int(value)}"
    return value if column.kind in {"float", "log_float"} else int(value)


def _never_called(config: Any, seed: int = 0) -> float:
    """SMAC wants a function; it is asked and told here, and calls none."""
    raise NotImplementedError


METHODS = {"smac": Smac}
