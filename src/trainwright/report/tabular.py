"""The trials of a study as CSV or Parquet: one row each, with the columns of `trainwright.ledger.rows`."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from trainwright.errors import MissingExtra
from trainwright.ledger import State, open_ledger, state_of
from trainwright.ledger.rows import columns, rows
from trainwright.report.files import replacing, target, write
from trainwright.search.importance import importance_of
from trainwright.space import Space

__all__ = ["export_csv", "export_importance", "export_parquet", "read_state"]


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
    try:
        import polars as pl
    except ImportError:
        raise MissingExtra.of("the Parquet export", "polars", "parquet") from None
    table = pl.DataFrame(columns(read_state(directory)))
    with replacing(path) as temporary:
        table.write_parquet(temporary)
    return path


def export_importance(directory: str | Path, file: str | Path) -> Path:
    """Write which parameters matter for each objective of the study in `directory` as CSV; returns the path written.

    A row a parameter: metric, parameter, share, low, high (a 90 % interval), epoch, explained. Raises `SearchError`
    while there are too few results.
    """
    path = target(directory, file, (".csv",))
    state = read_state(directory)
    # Without requirements, which may be functions of modules that are not here.
    space = Space.from_json({"parameters": (state.space or {})["parameters"]})
    found = [(goal.metric, importance_of(state, space, goal.metric)) for goal in state.objectives]
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(["metric", "parameter", "share", "low", "high", "epoch", "explained"])
    for metric, one in found:
        for row in zip(one.names, one.shares, one.low, one.high, strict=True):
            writer.writerow([metric, *row, one.epoch, one.explained])
    write(path, out.getvalue())
    return path


def _cell_value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple) else value
