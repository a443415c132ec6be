"""The best ensemble of what trials have left so far, kept up while the search runs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainwright.ensemble import BudgetedGreedy, OnlineSelector
from trainwright.ensemble.entry import Member, read_member
from trainwright.ensemble.library import newest
from trainwright.ensemble.metrics import SMALLEST, Array
from trainwright.ensemble.predictions import check_kept
from trainwright.errors import EnsembleError
from trainwright.ledger import State

__all__ = ["EnsembleSoFar", "SoFar"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SoFar:
    """The greedy ensemble of the models seen, by cross-entropy on the rows that it was selected on."""

    weights: dict[int, float]  # by trial
    loss: float
    single_trial: int
    single_loss: float  # of the best model alone
    split: str
    models: int
    left_out: int  # damaged, of other rows, or without the split


class EnsembleSoFar:
    """A fold over what trials offer: `update` looks at the new entries only, and at 4 bytes a row of each.

    Only for classes. A trial that left a later epoch takes the place of its earlier one, for which the selection
    is done again, from columns in memory.
    """

    def __init__(self, directory: str | Path, settings: BudgetedGreedy | None = None, split: str = "selection") -> None:
        self.directory, self.settings, self.split = Path(directory), settings or BudgetedGreedy(), split
        self._paths: dict[int, str] = {}
        self._columns: dict[int, Array] = {}
        self._online = OnlineSelector(self.settings)
        self._rows: str | None = None

    def update(self, state: State) -> SoFar | None:
        """Return the ensemble of a study's state; None while no model of classes has left the split."""
        offers = {number: newest(trial) for number, trial in sorted(state.trials.items()) if trial.offered}
        fresh = {number: offer for number, offer in offers.items() if self._paths.get(number) != offer.path}
        again = any(number in self._columns for number in fresh)
        for number, offer in fresh.items():
            self._paths[number] = offer.path
            self._columns.pop(number, None)
            try:
                member = read_member(self.directory / offer.path, offer.digests, trial=number)
                if self._same_rows(member):
                    true = member.true(self.split)
                    check_kept(true, "classes")
                    self._columns[number] = true
            except EnsembleError:  # `trainwright ensemble` says what is wrong with it
                continue
        if again:
            self._online = OnlineSelector(self.settings)
        for number, true in self._columns.items():
            if again or number in fresh:
                self._online.add(number, true)
        if not self._columns:
            return None
        losses = {number: -float(np.log(true.clip(SMALLEST)).mean()) for number, true in self._columns.items()}
        single = min(losses, key=lambda number: (losses[number], number))
        return SoFar(
            weights=self._online.weights,
            loss=self._online.loss,
            single_trial=single,
            single_loss=losses[single],
            split=self.split,
            models=len(self._columns),
            left_out=len(self._paths) - len(self._columns),
        )

    def _same_rows(self, member: Member) -> bool:
        split = member.splits.get(self.split)
        if member.output != "classes" or split is None:
            return False
        self._rows = self._rows or split.digest
        return split.digest == self._rows
