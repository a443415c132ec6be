"""Exports the trials of a study for other tools: as CSV or Parquet, one row each, and metrics over time as points."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainwright.errors import MissingExtra, StudyError
from trainwright.ledger import State, Status, TrialState, open_ledger, state_of
from trainwright.ledger.rows import columns, final_metrics, rows
from trainwright.report.files import replacing, target, write

__all__ = ["FinishedTrials", "export_csv", "export_parquet", "metric_points", "read_state"]


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
    writer.writerows([[_cell_value(value) for value in row.values()] for row in rows(state)])
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


def _cell_value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple) else value


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
