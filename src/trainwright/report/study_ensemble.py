"""The ensemble that a study's settings choose from its library now."""

from pathlib import Path
from typing import Any

import numpy as np

from trainwright.ensemble import Library
from trainwright.ensemble.ensemble_settings import ChosenEnsemble, StoredSettings
from trainwright.ledger import State

__all__ = ["choose_study_ensemble", "summarise_current_ensemble"]


def choose_study_ensemble(state: State, directory: str | Path) -> ChosenEnsemble | None:
    """Return what the study's settings choose from its library; None if it has no entry.

    Raises EnsembleError where the library does not allow a selection.
    """
    if not any(trial.offered for trial in state.trials.values()):
        return None
    # The settings of the last choice, so that all doors show the same members.
    settings = StoredSettings.settings_of(directory)
    return settings.choose(Library.of(state, directory))


def summarise_current_ensemble(state: State, directory: str | Path) -> dict[str, Any] | None:
    """Return the ensemble of a study's state in a few numbers; None while no trial has left predictions.

    `weights` are by trial; losses are of the rows that it was selected on; `left_out` counts members that are damaged,
    or without what the selection needs. Raises EnsembleError where the library does not allow a selection.
    """
    found = choose_study_ensemble(state, directory)
    if found is None:
        return None
    front, chosen, single = found.front, found.ensemble, found.front.baselines["single best"]
    return {
        "weights": {member.trial: weight for member, weight in zip(chosen.members, chosen.weights, strict=True)},
        "metric": front.metric,
        "loss": float(front.scored_by.loss(np.asarray(chosen.score(front.split, front.metric)))),
        "single_trial": single.members[0],
        "single_loss": single.loss,
        "split": front.split,
        "models": found.models,
        "left_out": len(front.excluded),
    }
