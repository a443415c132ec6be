"""SMAC3's multi-fidelity facade (a random forest over Hyperband) behind start and report; runs in SMAC's environment.

SMAC asks for whole evaluations at a budget. One that it asks for again at a greater budget goes on from where it was,
as if from a checkpoint, so that SMAC pays no epoch twice. Where it finds no new configuration it raises, and its search
has ended: what its workers run is finished, and nothing follows.
"""

import logging
import math
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.peers.columns import Column
from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, Float, Integer
from smac import MultiFidelityFacade, Scenario
from smac.main.exceptions import ConfigurationSpaceExhaustedException
from smac.runhistory.dataclasses import TrialInfo, TrialValue

__all__ = ["METHODS", "SmacTrials"]


class SmacTrials:
    """The facade's defaults, with budgets of 1 to `length` epochs."""

    def __init__(self, columns: Sequence[Column], seed: int, *, length: int) -> None:
        self._columns = columns
        space = ConfigurationSpace(seed=seed)
        space.add([_parameter(column) for column in columns])
        self._folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            space,
            deterministic=True,
            n_trials=1_000_000,
            min_budget=1,
            max_budget=length,
            seed=seed,
            output_directory=self._folder.name,
        )
        self._search = MultiFidelityFacade(scenario, _never_called, overwrite=True, logging_level=logging.ERROR)
        self._numbers: dict[Any, int] = {}
        self._asked: dict[int, TrialInfo] = {}
        self._reached: dict[int, int] = {}
        self._costs: dict[int, float] = {}
        self._worst = 0.0
        self._ended = False
        self.version = f"smac {version('smac')}; MultiFidelityFacade defaults"

    def start(self) -> tuple[int, list[float]] | None:
        """Return the configuration whose next budget is wanted; None once SMAC has found nothing new."""
        while not self._ended:
            try:
                info = self._search.ask()
            except ConfigurationSpaceExhaustedException:
                self._ended = True
                break
            number = self._numbers.setdefault(info.config, len(self._numbers))
            self._asked[number] = info
            if self._reached.get(number, 0) < round(info.budget):
                return number, [float(info.config[column.name]) for column in self._columns]
            # Two budgets that round to the same epoch: nothing is left to train.
            self._search.tell(info, TrialValue(cost=self._costs[number]))
        return None

    def report(self, number: int, epoch: int, loss: float) -> bool:
        """Tell SMAC the loss once the budget is used."""
        if math.isfinite(loss):
            self._worst = max(self._worst, loss)
        self._reached[number] = epoch
        info = self._asked[number]
        if epoch < round(info.budget):
            return True
        cost = loss if math.isfinite(loss) else self._worst
        self._costs[number] = cost
        self._search.tell(info, TrialValue(cost=cost))
        return False


def _parameter(column: Column) -> Any:
    if column.kind == "choice":
        return CategoricalHyperparameter(column.name, list(range(len(column.values))))
    if column.kind in {"int", "log_int"}:
        return Integer(column.name, (int(column.low), int(column.high)), log=column.kind == "log_int")
    return Float(column.name, (column.low, column.high), log=column.kind == "log_float")


def _never_called(config: Any, seed: int = 0, budget: float = 0.0) -> float:
    """SMAC wants a function; it is asked and told here, and calls none."""
    raise NotImplementedError


METHODS = {"trials_smac-hyperband": SmacTrials}
