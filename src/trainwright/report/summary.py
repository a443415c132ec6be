"""The results of a study as numbers for scripts: summary.json, and the ensemble that its settings select."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.ensemble import Library
from trainwright.ensemble.ensemble_settings import ChosenEnsemble, StoredSettings
from trainwright.errors import StudyError
from trainwright.ledger import State, open_ledger, state_of
from trainwright.report.files import write
from trainwright.report.overview import Overview
from trainwright.study.results import Results

__all__ = ["choose_study_ensemble", "write_summary"]


def write_summary(directory: str | Path, *, also: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write DIR/summary.json and return its content.

    It holds `trials`, `finished` (trials with a result), `seconds` (of wall time, without breaks), with bounds
    or constraints `feasible` (results that keep them), and `best` (trial and values; null if none is feasible), or for
    several objectives `front` (trials) and `hypervolume` with `hypervolume_over_time` (after each result); then the
    entries of `also`, which the stages after the search give.
    """
    folder = Path(directory)
    state = state_of(open_ledger(folder))
    content: dict[str, Any] = {
        "trials": len(state.trials),
        "finished": state.results,
        "seconds": round(Overview(state).clock.total, 3),
        **_describe_outcome(state),
        **(also or {}),
    }
    write(folder / "summary.json", json.dumps(content, indent=2) + "\n")
    return content


def _describe_outcome(state: State) -> dict[str, Any]:
    """Return what came out: only feasible results count as best."""
    results = Results.of(state)
    content: dict[str, Any] = {}
    if any(math.isfinite(limit) for limit in state.limits):
        content["feasible"] = int(results.feasible.sum())
    if len(state.objectives) == 1:
        best = results.best() if results.feasible.any() else None
        return content | {"best": None if best is None else {"trial": best.number, "values": dict(best.values)}}
    content["front"] = [trial.number for trial in results.front()]
    try:
        # The course shows scripts when the search stopped paying.
        course = [volume for _, volume in results.hypervolume_over_time()]
    except StudyError:
        # Too few results for a reference point.
        course = []
    return content | {"hypervolume": course[-1] if course else None, "hypervolume_over_time": course}


def choose_study_ensemble(state: State, directory: str | Path) -> ChosenEnsemble | None:
    """Return what the study's settings choose from its library; None if it has no entry.

    Raises EnsembleError where the library does not allow a selection.
    """
    if not any(trial.offered for trial in state.trials.values()):
        return None
    # The settings of the last choice, so that all doors show the same members.
    settings = StoredSettings.settings_of(directory)
    return settings.choose(Library.of(state, directory))
