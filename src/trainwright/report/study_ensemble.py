"""The ensemble that a study's settings choose from its library now, with every single member for comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainwright.ensemble import Ensemble, Front, Library
from trainwright.ensemble.ensemble_settings import ChosenEnsemble, StoredSettings
from trainwright.ensemble.metrics import METRICS
from trainwright.ensemble.selection.candidates import make_scorer
from trainwright.ledger import State

__all__ = ["CurrentEnsemble", "SingleModel", "StudyEnsemble", "choose_study_ensemble", "summarise_current_ensemble"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleModel:
    """One member alone, on the rows of the selection."""

    trial: int
    loss: float
    seconds_per_row: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyEnsemble:
    """The ensemble that was chosen, the front that it is from, and the members alone."""

    chosen: ChosenEnsemble
    singles: Sequence[SingleModel]

    @classmethod
    def of(cls, chosen: ChosenEnsemble) -> "StudyEnsemble":
        """Return a choice together with the library's models alone."""
        return cls(chosen=chosen, singles=_score_singles(chosen.front))

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
        if any(split not in m.splits or m.splits[split].source is not None for m in ensemble.members):
            return None
        metric = "accuracy" if ensemble.members[0].output == "classes" else "squared_error"
        return metric, ensemble.score(split, metric)


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentEnsemble:
    """The ensemble of a running study in a few numbers, by its loss on the rows that it was selected on."""

    weights: dict[int, float]  # by trial
    metric: str
    loss: float
    single_trial: int
    single_loss: float  # of the best model alone
    split: str
    models: int
    left_out: int  # damaged, or without what the selection needs


def choose_study_ensemble(state: State, directory: str | Path) -> StudyEnsemble | None:
    """Return what the study's settings choose from its library; None if it has no entry.

    Raises EnsembleError where the library does not allow a selection.
    """
    if not any(trial.offered for trial in state.trials.values()):
        return None
    settings = StoredSettings.settings_of(directory)
    return StudyEnsemble.of(settings.choose(Library.of(state, directory)))


def summarise_current_ensemble(state: State, directory: str | Path) -> CurrentEnsemble | None:
    """Return the ensemble of a study's state; None while no trial has left predictions.

    Raises EnsembleError where the library does not allow a selection.
    """
    found = choose_study_ensemble(state, directory)
    if found is None:
        return None
    front, pick, single = found.front, found.pick, found.front.baselines["single best"]
    return CurrentEnsemble(
        weights={member.trial: weight for member, weight in zip(pick.members, pick.weights, strict=True)},
        metric=front.metric,
        loss=float(METRICS[front.metric].loss(np.asarray(pick.score(front.split, front.metric)))),
        single_trial=single.members[0],
        single_loss=single.loss,
        split=front.split,
        models=found.chosen.models,
        left_out=len(front.excluded),
    )


def _score_singles(front: Front) -> list[SingleModel]:
    candidates = front.candidates
    losses = make_scorer(candidates, METRICS[front.metric]).losses((), np.arange(len(candidates)))
    seconds = [None] * len(candidates) if candidates.seconds is None else candidates.seconds.tolist()
    return [
        SingleModel(trial=trial, loss=loss, seconds_per_row=cost)
        for trial, loss, cost in zip(candidates.trials.tolist(), losses.tolist(), seconds, strict=True)
    ]
