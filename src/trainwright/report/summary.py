"""summary.json: what came out of a study, as numbers that a script reads."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.ensemble import BudgetedGreedy, Library
from trainwright.ensemble.metrics import metric_of
from trainwright.errors import InputError, StudyError, closest
from trainwright.ledger import State, open_ledger, state_of
from trainwright.report.files import replacing
from trainwright.study.results import Results

__all__ = ["check_ensemble", "write_summary"]

_SETTINGS = ("max_members", "metric", "split", "test_split", "cost_factor")


def write_summary(directory: str | Path, *, ensemble: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write DIR/summary.json and return its content.

    It holds `trials`, `finished` (trials with a result), `seconds` (wall seconds in which any trial ran), with bounds
    or constraints `feasible` (results that keep them), and `best` (trial and values; null if none is feasible), or for
    several objectives `front` (trials) and `hypervolume` with `hypervolume_over_time` (after each result). `ensemble`
    are the settings of a study file's [ensemble]: with them an ensemble of at most `max_members` members that costs at
    most `cost_factor` times the best single member is selected by `metric` on the rows of `split`, and the accuracies
    of both on the rows of `test_split` are added, with the ensemble's cost in seconds per row.
    """
    folder = Path(directory)
    state = state_of(open_ledger(folder))
    content: dict[str, Any] = {
        "trials": len(state.trials),
        "finished": state.results,
        "seconds": round(_busy_seconds(state), 3),
        **_outcome(state),
    }
    if ensemble is not None:
        content |= _selected(Library.of(state, folder), ensemble)
    with replacing(folder / "summary.json") as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return content


def check_ensemble(settings: Mapping[str, Any]) -> None:
    """Refuse settings of [ensemble] that cannot work, so that a study need not run first to tell."""
    for name, value in settings.items():
        if name not in _SETTINGS:
            allowed = ", ".join(_SETTINGS)
            raise InputError(f"[ensemble]: {name!r} is unknown; allowed: {allowed}{closest(name, _SETTINGS)}")
        if name == "max_members" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"[ensemble] max_members: got {value!r}; allowed: a whole number >= 1")
        if name == "cost_factor" and (not isinstance(value, int | float) or not value > 0):
            raise InputError(
                f"[ensemble] cost_factor: got {value!r}; allowed: a number > 0, times the best single's cost"
            )
        if name in {"metric", "split", "test_split"} and not isinstance(value, str):
            raise InputError(f"[ensemble] {name}: got {value!r}; allowed: a name")
    metric_of(settings.get("metric", "cross_entropy"), "classes")


def _selected(library: Library, settings: Mapping[str, Any]) -> dict[str, Any]:
    check_ensemble(settings)
    test = settings.get("test_split", "test")
    strategy = BudgetedGreedy(max_members=settings.get("max_members", 8))
    front = library.select(strategy, settings.get("metric", "cross_entropy"), settings.get("split", "selection"))
    single = front.single_best
    factor, cost = settings.get("cost_factor"), single.cost_seconds
    limit = None if factor is None or cost is None else factor * cost
    chosen = front.pick("best", max_seconds=limit)
    return {
        **front.summary(chosen, test),
        "single_cost": single.cost_seconds,
        "cost_limit": limit,
        "single_trial": single.members[0].trial,
        "ensemble_trials": [member.trial for member in chosen.members],
        "ensemble_weights": list(chosen.weights),
    }


def _outcome(state: State) -> dict[str, Any]:
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
        course = [volume for _, volume in results.hypervolume_over_time()]
    except StudyError:  # too few results for a reference point
        course = []
    return content | {"hypervolume": course[-1] if course else None, "hypervolume_over_time": course}


def _busy_seconds(state: State) -> float:
    """Return the length of the union of all leases' spans: pauses between two sessions do not count."""
    spans = sorted(
        (lease.started_at, lease.started_at + lease.seconds)
        for trial in state.trials.values()
        for lease in trial.leases.values()
        if lease.started_at is not None
    )
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
