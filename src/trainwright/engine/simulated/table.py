"""Replays tables of measured learning curves: simulated trials are rows of a benchmark (surrogate) table."""

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trainwright.engine.simulated.task import Draws
from trainwright.errors import EngineError, MissingExtra, closest
from trainwright.randomness import rng
from trainwright.space.configuration import is_number
from trainwright.validators import check, number, one_of

__all__ = ["Table", "tables"]

_MOST_BYTES = 2**33  # that a table may unpack to

Columns = Mapping[str, Any]
Missing = Literal["error", "nearest"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Learning curves of configurations, row by row: what `tw.tables` makes.

    `losses` holds an array (epochs, objectives) per row, lower being better; `seconds`, if known, the time at the end
    of each epoch; `params` the configurations, if known. Only the first `measured` epochs of a row count as known.
    `in_order`: trial n is row n, not one that is drawn.
    """

    losses: tuple[np.ndarray, ...]
    seconds: tuple[np.ndarray, ...] | None = None
    params: tuple[Mapping[str, Any], ...] | None = None
    measured: tuple[int, ...] | None = None
    missing: Missing = "error"
    epoch_seconds: float = 60.0
    speed_jitter: float = 0.0
    in_order: bool = False

    def __post_init__(self) -> None:
        check(self.missing, one_of("error", "nearest"), "tables: missing", EngineError)
        if not self.losses or any(len(row) == 0 for row in self.losses):
            raise EngineError("tables: got a table without rows, or a row without epochs; give at least one of each")
        check(self.epoch_seconds, number(above=0), "tables: epoch_seconds", EngineError)
        check(self.speed_jitter, number(minimum=0), "tables: speed_jitter", EngineError)

    def learning_curves(self, seed: int) -> "_Rows":
        """Return the rows of the study with this seed: each at most once, unless parameters ask for it."""
        return _Rows(self, seed)


def tables(
    source: str | Path | Columns,
    *,
    loss: str | Sequence[str] = "valid_loss",
    seconds: str | None = None,
    params: str | Sequence[str] | None = None,
    run: str | None = None,
    direction: Literal["min", "max"] = "min",
    missing: Missing = "error",
    epoch_seconds: float = 60.0,
    speed_jitter: float = 0.05,
) -> Table:
    """Return a task whose trials are rows of a table: an .npz, .parquet or .csv file, or named arrays.

    Without `run`, `loss` and `seconds` name arrays (rows, epochs), and `params` (default "hp", if there is one) one of
    (rows, parameters), whose names are in the array called so and "_names", as in TaskSet. With `run`, the table is
    long: one row per run and epoch in the order of time; `params` is a column of JSON objects, or a list of columns.
    A trial is a row drawn without replacement, or that of the configuration which a searcher proposes. What the table
    has not (such a configuration, so late an epoch, another row) is refused, or with `missing="nearest"` replaced: the
    nearest configuration, the last epoch, a row again. Losses of `direction="max"` are negated. Without `seconds` an
    epoch takes `epoch_seconds`, times a lognormal factor of the trial of spread `speed_jitter`.
    """
    columns = _load_columns(source)
    names = (loss,) if isinstance(loss, str) else tuple(loss)
    # Inside, lower is always better.
    check(direction, one_of("min", "max"), "tables: direction", EngineError)
    sign = 1.0 if direction == "min" else -1.0
    rows = _split_runs(columns, run) if run is not None else None
    curves = [[sign * row for row in _read_rows(columns, name, rows)] for name in names]
    times = None if seconds is None else [np.maximum.accumulate(row) for row in _read_rows(columns, seconds, rows)]
    return Table(
        # One array per row, with a column for each objective.
        losses=tuple(np.stack(row, axis=1) for row in zip(*curves, strict=True)),
        seconds=None if times is None else tuple(times),
        params=_long_params(columns, params, rows) if rows is not None else _wide_params(columns, params),
        missing=missing,
        epoch_seconds=epoch_seconds,
        speed_jitter=0.0 if seconds is not None else speed_jitter,
    )


def _load_columns(source: str | Path | Columns) -> Columns:
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    if not path.is_file():
        raise EngineError(f"tables: there is no file {path}; give an .npz, .parquet or .csv file, or named arrays")
    if path.suffix == ".npz":
        try:
            # What the file claims to hold, before any of it is unpacked.
            with zipfile.ZipFile(path) as entries:
                size = sum(entry.file_size for entry in entries.infolist())
            if size > _MOST_BYTES:
                raise EngineError(f"tables: {path} unpacks to {size} bytes; allowed: up to {_MOST_BYTES}")
            with np.load(path) as arrays:
                return dict(arrays)
        except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
            raise EngineError(f"tables: {path} is no .npz file of numbers ({error})") from None
    if path.suffix not in {".parquet", ".csv"}:
        raise EngineError(f"tables: {path} ends in {path.suffix or 'nothing'!r}; allowed: .npz, .parquet, .csv")
    with MissingExtra.instead_of_import_error(f"tables: {path}", "polars", "parquet"):
        import polars as pl
    try:
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise EngineError(f"tables: {path} cannot be read ({str(error).splitlines()[0]})") from None
    return {name: frame[name].to_numpy() for name in frame.columns}


def _find_column(columns: Columns, name: str) -> np.ndarray:
    if name not in columns:
        known = sorted(columns)
        raise EngineError(f"tables: {name!r} is not there; there are {', '.join(known)}{closest(name, known)}")
    return np.asarray(columns[name])


def _split_runs(columns: Columns, run: str) -> list[np.ndarray]:
    """Return the places of each run in a long table, runs in the order in which they come first."""
    _, first, inverse = np.unique(_find_column(columns, run), return_index=True, return_inverse=True)
    # Stable, so that the epochs of a run stay in the order of the table.
    places = np.argsort(inverse, kind="stable")
    groups = np.split(places, np.cumsum(np.bincount(inverse))[:-1])
    return [groups[each] for each in np.argsort(first)]


def _read_rows(columns: Columns, name: str, rows: list[np.ndarray] | None) -> list[np.ndarray]:
    try:
        column = _find_column(columns, name).astype(float)
    except ValueError:
        raise EngineError(f"tables: {name!r} holds something else than numbers") from None
    if rows is not None:
        return [column[places] for places in rows]
    if column.ndim != 2:
        raise EngineError(
            f"tables: {name!r} has {column.ndim} dimensions; allowed: 2 (rows, epochs), or give run= for a long table"
        )
    return list(column)


def _wide_params(columns: Columns, params: str | Sequence[str] | None) -> tuple[Mapping[str, Any], ...] | None:
    name = "hp" if params is None else params
    if not isinstance(name, str):
        raise EngineError(f"tables: params: got {params!r}; allowed: the name of one array, for a table without run=")
    if params is None and name not in columns:
        return None
    names, values = _find_column(columns, f"{name}_names"), _find_column(columns, name)
    return tuple(dict(zip(map(str, names), row, strict=True)) for row in values.tolist())


def _long_params(
    columns: Columns, params: str | Sequence[str] | None, rows: list[np.ndarray]
) -> tuple[Mapping[str, Any], ...] | None:
    if params is None:
        return None
    firsts = [places[0] for places in rows]
    if isinstance(params, str):
        return tuple(json.loads(_find_column(columns, params)[first]) for first in firsts)
    return tuple({name: _find_column(columns, name)[first].item() for name in params} for first in firsts)


class _Rows:
    """The rows that the trials of one study are."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        rows = len(table.losses)
        self.order = np.arange(rows) if table.in_order else rng(seed, "simulated row", 0).permutation(rows)
        self.nearest: _Nearest | None = None
        self.substituted: set[int] = set()
        self.speed = Draws(seed, "simulated speed")

    @property
    def substitutions(self) -> int:
        return len(self.substituted)

    def of(self, trial: int, params: Mapping[str, Any] | None) -> "_Row":
        table = self.table
        row = self._draw_row(trial) if params is None else self._find_row(trial, params)
        if table.seconds is not None:
            seconds = table.seconds[row].tolist()
        else:
            each = table.epoch_seconds * math.exp(table.speed_jitter * self.speed.at(trial))
            seconds = [each * epoch for epoch in range(1, len(table.losses[row]) + 1)]
        known = len(table.losses[row]) if table.measured is None else table.measured[row]
        return _Row(self, trial, row, table.losses[row].tolist(), seconds, known)

    def _draw_row(self, trial: int) -> int:
        rows = len(self.order)
        if trial >= rows:
            self.instead(trial, f"trial {trial} is one more than the table's {rows} rows", "fewer trials")
        return int(self.order[trial % rows])

    def _find_row(self, trial: int, params: Mapping[str, Any]) -> int:
        if self.table.params is None:
            raise EngineError("tables: a searcher proposes configurations, of which this table has none; give params=")
        if self.nearest is None:
            self.nearest = _Nearest(self.table.params)
        # A distance of rounding errors is none.
        row, distance = self.nearest.of(params)
        if distance > 1e-12:
            shown = ", ".join(f"{name}={value}" for name, value in params.items())
            self.instead(trial, f"there is no configuration {shown}", "a space of the table's configurations")
        return row

    def instead(self, trial: int, what: str, allowed: str) -> None:
        """Refuse what the table has not, or count that something else is taken."""
        if self.table.missing == "error":
            raise EngineError(f"tables: {what}; allowed: {allowed}, or missing='nearest', which counts replacements")
        self.substituted.add(trial)


@dataclass(slots=True)
class _Row:
    rows: _Rows
    trial: int
    row: int
    curve: list[list[float]]
    times: list[float]
    known: int

    def losses(self, epoch: int) -> tuple[float, ...]:
        if epoch > self.known:
            what = f"trial {self.trial} comes to epoch {epoch}, row {self.row} has {self.known}"
            self.rows.instead(self.trial, what, f"rules up to max_epochs={self.known}")
        return tuple(self.curve[min(epoch, len(self.curve)) - 1])

    def seconds(self, epoch: int) -> float:
        have = len(self.times)
        if epoch <= have:
            return self.times[epoch - 1] if epoch else 0.0
        return self.times[-1] * epoch / have


class _Nearest:
    """The nearest of some configurations: numbers by their place in their range (of logarithms, if it is wide)."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._names = sorted({name for row in rows for name in row})
        self._columns = [[row.get(name) for row in rows] for name in self._names]
        self._scales = [_Scale.of(column) for column in self._columns]
        self._placed = [
            None if scale is None else np.array([scale.place(value) for value in column])
            for scale, column in zip(self._scales, self._columns, strict=True)
        ]

    def of(self, params: Mapping[str, Any]) -> tuple[int, float]:
        """Return the nearest row and how far it is."""
        total = np.zeros(len(self._columns[0]))
        for name, column, scale, placed in zip(self._names, self._columns, self._scales, self._placed, strict=True):
            value = params.get(name)
            if scale is None or placed is None or not is_number(value):
                total += np.array([each != value for each in column], dtype=float)
            else:
                away = (placed - scale.place(value)) ** 2
                total += np.where(np.isfinite(away), away, 1.0)
        # The first of equally near rows, so that the choice does not depend on anything else.
        row = int(total.argmin())
        return row, float(total[row])


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    span: float
    log: bool

    @classmethod
    def of(cls, column: Sequence[Any]) -> "_Scale | None":
        numbers = [value for value in column if is_number(value)]
        if len(numbers) < sum(value is not None for value in column) or not numbers:
            return None
        low, high = min(numbers), max(numbers)
        # A range over two decades was probably sampled by logarithms.
        log = low > 0 and high > 100 * low
        if log:
            low, high = math.log(low), math.log(high)
        return cls(low, (high - low) or 1.0, log)

    def place(self, value: Any) -> float:
        if not is_number(value) or (self.log and value <= 0):
            return math.nan
        return ((math.log(value) if self.log else value) - self.low) / self.span
