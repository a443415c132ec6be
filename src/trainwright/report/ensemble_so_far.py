"""The ensemble of what trials have left so far, in a few words for a study that runs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainwright.ensemble.metrics import METRICS
from trainwright.ledger import State
from trainwright.report.study_ensemble import ensembles_of

__all__ = ["SoFar", "ensemble_so_far"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SoFar:
    """The ensemble that the study's settings choose now, by its loss on the rows that it was selected on."""

    weights: dict[int, float]  # by trial
    metric: str
    loss: float
    single_trial: int
    single_loss: float  # of the best model alone
    split: str
    models: int
    left_out: int  # damaged, or without what the selection needs


def ensemble_so_far(state: State, directory: str | Path) -> SoFar | None:
    """Return the ensemble of a study's state; None while no trial has left predictions.

    Raises EnsembleError where the library does not allow a selection.
    """
    found = ensembles_of(state, directory)
    if found is None:
        return None
    front, pick, single = found.front, found.pick, found.front.baselines["single best"]
    return SoFar(
        weights={member.trial: weight for member, weight in zip(pick.members, pick.weights, strict=True)},
        metric=front.metric,
        loss=float(METRICS[front.metric].loss(np.asarray(pick.score(front.split, front.metric)))),
        single_trial=single.members[0],
        single_loss=single.loss,
        split=front.split,
        models=found.chosen.models,
        left_out=len(front.excluded),
    )
