"""Exports a study for other tools: summary.json, its trials as CSV or Parquet, and metrics over time as points."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwright.ensemble import Library
from trainwright.ensemble.ensemble_settings import ChosenEnsemble, StoredSettings
from trainwright.errors import MissingExtra, StudyError
from trainwright.ledger import State, Status, TrialState, open_ledger, state_of
from trainwright.ledger.rows import columns, final_metrics, rows
from trainwright.report.files import replacing, target, write
from trainwright.report.overview import Overview
from trainwright.study.results import Results

__all__ = [
    "FinishedTrials",
    "choose_study_ensemble",
    "export_csv",
    "export_parquet",
    "metric_points",
    "read_state",
    "write_summary",
]


def read_state(directory: str | Path) -> State:
    """Return the state of the study in a folder."""
    return state_of(open_ledger(directory))


def export_csv(directory: str | Path, file: str | Path) -> Path:
    """Write the trials of the study in `directory` as a table with a header line; returns the path written.

    Fields are empty where there is no value; lists and text with commas are quoted as the csv module does it.
    """
    path = target(directory, file, (".csv",))
    state = read_state(directory)
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(columns(state))
    for row in rows(state):
        writer.writerow(json.dumps(value) if isinstance(value, list | tuple) else value for value in row.values())
    write(path, out.getvalue())
    return path


def export_parquet(directory: str | Path, file: str | Path) -> Path:
    """Write the trials of the study in `directory` as Parquet; returns the path written.

    A parameter whose values are of several types becomes a column of their JSON texts.
    """
    path = target(directory, file, (".parquet", ".pq"))
    with MissingExtra.instead_of_import_error("the Parquet export", "polars", "parquet"):
        import polars as pl
    table = pl.DataFrame(columns(read_state(directory)))
    with replacing(path) as temporary:
        table.write_parquet(temporary)
    return path


_ENDS = frozenset({Status.COMPLETE, Status.STOPPED, Status.FAILED, Status.ABANDONED})


class FinishedTrials:
    """The trials of the study in `directory` that have ended, in the order of their numbers.

    With `lost`, lost trials count as ended; without, only once it is settled what becomes of them.
    """

    def __init__(self, directory: str | Path, *, lost: bool = False) -> None:
        self.name = Path(directory).resolve().name
        ledger = open_ledger(directory)
        self.study_id = ledger.study_id
        self.state = state_of(ledger)
        if self.state.space is None:
            raise StudyError(f"the study in {directory} has no records yet; run it before it is exported")
        statuses = _ENDS | ({Status.LOST} if lost else set())
        trials = sorted(self.state.trials.items())
        self.trials: list[TrialState] = [trial for _, trial in trials if trial.status in statuses]


def metric_points(trial: TrialState) -> Iterator[tuple[float, int, Mapping[str, float]]]:
    """Yield time, epoch and metrics of each report, then what the result of an ended trial holds beyond the last."""
    reported: Mapping[str, float] = {}
    for epoch in sorted(trial.reports):
        report = trial.reports[epoch]
        reported = report.metrics
        yield report.at, epoch, reported
    # What the last report has already said would be a second point at the end of the curve.
    final = final_metrics(trial).items()
    result = {name: value for name, value in final if reported.get(name) != value and not math.isnan(value)}
    if result:
        yield trial.end.at if trial.end is not None else 0.0, trial.epoch, result


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
