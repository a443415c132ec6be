"""What the library of a study gives: every single member, and the ensemble that the study's settings choose."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainwright.ensemble import Ensemble, Front
from trainwright.ensemble.ensemble_settings import ChosenEnsemble, StoredSettings
from trainwright.ensemble.metrics import METRICS
from trainwright.ensemble.selection.candidates import make_scorer
from trainwright.ledger import State

__all__ = ["Ensembles", "Single", "ensembles_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Single:
    """One member alone, on the rows of the selection."""

    trial: int
    loss: float
    seconds_per_row: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensembles:
    """The ensemble that was chosen, the front that it is from, and the members alone."""

    chosen: ChosenEnsemble
    singles: Sequence[Single]

    @classmethod
    def of(cls, chosen: ChosenEnsemble) -> "Ensembles":
        """Return what a choice gives to draw."""
        return cls(chosen=chosen, singles=_singles(chosen.front))

    @property
    def front(self) -> Front:
        """The front that the ensemble was picked from."""
        return self.chosen.front

    @property
    def pick(self) -> Ensemble:
        """The ensemble."""
        return self.chosen.ensemble

    @property
    def left_out(self) -> int:
        """How many members of the library were not among the best that selection looks at."""
        return self.chosen.models - len(self.chosen.library.members)

    def test_score(self, ensemble: Ensemble) -> tuple[str, float] | None:
        """Return the name and value of the score on the test rows, which no choice was made on; None without them."""
        split = self.chosen.settings.test_split
        if any(split not in member.splits or split in member.sources for member in ensemble.members):
            return None
        metric = "accuracy" if ensemble.members[0].output == "classes" else "squared_error"
        return metric, ensemble.score(split, metric)


def ensembles_of(state: State, directory: str | Path) -> Ensembles | None:
    """Return what the study's settings choose from its library; None if it has no entry.

    Raises EnsembleError where the library does not allow a selection.
    """
    if not any(trial.offered for trial in state.trials.values()):
        return None
    settings = StoredSettings.settings_of(directory)
    return Ensembles.of(settings.choose(settings.open_library(directory, state)))


def _singles(front: Front) -> list[Single]:
    candidates = front.candidates
    if candidates is None:
        return []
    losses = make_scorer(candidates, METRICS[front.metric]).losses((), np.arange(len(candidates)))
    seconds = [None] * len(candidates) if candidates.seconds is None else candidates.seconds.tolist()
    return [
        Single(trial=trial, loss=loss, seconds_per_row=cost)
        for trial, loss, cost in zip(candidates.trials.tolist(), losses.tolist(), seconds, strict=True)
    ]
