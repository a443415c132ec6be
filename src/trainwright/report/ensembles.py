"""What the library of a study gives: the front of its ensembles, every single member, and the pick among them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainwright.ensemble import METRICS, BudgetedGreedy, Ensemble, Front, Library
from trainwright.ensemble.candidates import scorer_of
from trainwright.report.overview import Overview

__all__ = ["Ensembles", "Single", "ensembles_of"]

_MOST_MEMBERS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Single:
    """One member alone, on the rows of the selection."""

    trial: int
    loss: float
    seconds_per_row: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensembles:
    """The front, the members alone, and the pick: least loss, within the study's cost limit if summary.json has one.

    `left_out` members were not looked at.
    """

    front: Front
    singles: Sequence[Single]
    pick: Ensemble
    left_out: int

    def test_score(self, ensemble: Ensemble) -> tuple[str, float] | None:
        """Return the name and value of the score on the split "test", which no choice was made on; None without one."""
        if any("test" not in member.splits or "test" in member.sources for member in ensemble.members):
            return None
        metric = "accuracy" if ensemble.members[0].output == "classes" else "squared_error"
        return metric, ensemble.score("test", metric)


def ensembles_of(overview: Overview, directory: str | Path) -> Ensembles | None:
    """Return what can be made of the study's library, from its 200 best members at most; None if it has no entry.

    Raises EnsembleError where the library does not allow a selection.
    """
    if not any(trial.offered for trial in overview.trials):
        return None
    library = Library.of(overview.state, directory)
    left_out = len(library.members) - _MOST_MEMBERS
    if left_out > 0:
        places = {overview.trials[at].number: place for place, at in enumerate(overview.ranking.tolist())}
        members = sorted(library.members, key=lambda member: places.get(member.trial, len(places)))
        library = Library(members[:_MOST_MEMBERS], library.excluded)
    first = library.members[0]
    metric = "cross_entropy" if first.output == "classes" else "squared_error"
    split = "selection" if "selection" in first.splits else min(first.splits, key=lambda name: (name == "test", name))
    candidates, _ = library.candidates(METRICS[metric], split)
    losses = scorer_of(candidates, METRICS[metric]).losses((), np.arange(len(candidates)))
    seconds = [None] * len(candidates) if candidates.seconds is None else candidates.seconds.tolist()
    front = library.select(BudgetedGreedy(), metric, split)
    return Ensembles(
        front=front,
        singles=[
            Single(trial=trial, loss=loss, seconds_per_row=cost)
            for trial, loss, cost in zip(candidates.trials.tolist(), losses.tolist(), seconds, strict=True)
        ],
        pick=front.pick("best", max_seconds=_cost_limit(Path(directory))),
        left_out=max(left_out, 0),
    )


def _cost_limit(directory: Path) -> float | None:
    """Return the seconds per row that the study's own selection allowed, so that report and summary pick alike."""
    try:
        limit = json.loads((directory / "summary.json").read_text(encoding="utf-8")).get("cost_limit")
    except (OSError, ValueError, AttributeError):
        return None
    return limit if isinstance(limit, float) else None
