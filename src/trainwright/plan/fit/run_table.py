"""Reads tables of measured training steps: a CSV file, a run a line, in words that published results use.

`model` names a model; `profile` is its profile's .json, relative to the table, or the shape stands in the columns of
`describe_transformer`. Degrees are those of the frameworks: `devices` = tensor x context x data x pipeline, and experts
share the ranks of these axes. An empty cell, or a column that is not there, has its default.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.describe.transformer import describe_transformer
from trainwright.model.profile import Profile
from trainwright.plan.fit.measured_run import MeasuredRun
from trainwright.plan.layout import Degrees
from trainwright.plan.parallel.precision import precision_of
from trainwright.plan.parallel.roofline import peak_flops
from trainwright.plan.parallel.single_plan import make_layout
from trainwright.plan.parallel.strategies.registry import AXES
from trainwright.validators import check, integer, number, one_of

__all__ = ["RunTable", "read_runs"]

_SHAPE = ("hidden", "layers", "heads", "sequence")
_SHAPE_NUMBERS = (
    *_SHAPE, "vocabulary", "kv_heads", "head_size", "feedforward", "experts", "top_k", "shared_feedforward",
    "dense_layers", "dense_feedforward", "latent_size", "query_latent_size", "rotary_size", "value_size",
)  # fmt: skip
_SHAPE_FLAGS = ("gated", "fused_attention", "tied", "dropout", "biases", "positions")
_AXES = tuple(axis.name for axis in AXES)
_COUNTED = frozenset({*_AXES, "batch", "micro", "shard", "chunks"})  # at least one; other whole numbers may be 0
_CHOICES = ("batch", "micro", "zero", "shard", "recompute", "schedule", "chunks")
_WORDS = frozenset({"model", "profile", "precision", "recompute", "optimizer", "schedule"})
_FLAGS = frozenset({*_SHAPE_FLAGS, "sequence_parallel"})
_AMOUNTS = frozenset({"seconds", "peak_bytes"})
_COLUMNS = _WORDS | _FLAGS | _AMOUNTS | {*_SHAPE_NUMBERS, *_AXES, *_CHOICES, "devices"}
"""Columns of a table of runs; others are left alone."""
_VOCABULARY = 51200
"""Where a table does not say it: that of GPT-2, padded."""
_UNUSED = 1e-4
"""Share of the peak below which seconds are taken for another unit."""
_CONTRADICTION = 1.5
"""Times as long as an equal run took, beyond which one of both is wrong."""


@dataclass(frozen=True, slots=True)
class RunTable:
    """Runs in the order of their lines, and the columns that mean nothing here."""

    runs: tuple[MeasuredRun, ...]
    ignored: tuple[str, ...]


def read_runs(path: Path, cluster: Cluster, *, measured: bool = True) -> RunTable:
    """Return the runs of a table; without `measured` the column `seconds` may be missing.

    Raises `InputError`, with the line, for a missing column, a value out of range, figures in other units, and equal
    runs whose seconds contradict each other.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            # Spreadsheets of some languages separate by semicolons.
            separator = max(",;\t", key=file.readline().count)
            file.seek(0)
            reader = csv.DictReader(file, delimiter=separator)
            columns = [name.strip().lower() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = [{name: (row[name] or "").strip() for name in columns} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{path}: cannot be read ({reason}); allowed: a CSV file with a header and a run a line"
        ) from None
    needed = ["batch", *(["seconds"] if measured else []), *(_SHAPE if "profile" not in columns else [])]
    if missing := [name for name in needed if name not in columns]:
        raise InputError(
            f"{path}: column {missing[0]!r} is missing; got {', '.join(columns) or 'none'}; needed: {', '.join(needed)}"
            + ("" if "profile" in columns else " (or profile in the place of a shape)")
        )
    if not rows:
        raise InputError(f"{path}: got no runs; allowed: a run a line below the header")
    known: dict[object, Profile] = {}
    runs = []
    read = _COLUMNS if measured else _COLUMNS - {"seconds"}
    for number_of_line, row in enumerate(rows, start=2):
        where = f"{path}, line {number_of_line}"
        try:
            values = {name: _read_cell(name, words) for name, words in row.items() if words and name in read}
            for name in ("batch", "seconds") if measured else ("batch",):
                check(values.get(name), number(above=0), name)
            runs.append(_read_run(values, path.parent, known, where))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    for run in runs:
        _check_units(run, cluster)
    _check_contradictions(runs)
    return RunTable(tuple(runs), tuple(name for name in columns if name not in _COLUMNS))


def _read_run(values: Mapping[str, Any], folder: Path, known: dict[object, Profile], where: str) -> MeasuredRun:
    """Return the run of a line, whose columns are there as values."""
    profile = _find_profile(values, folder, known)
    precision = values.get("precision", profile.precision)
    precision_of(precision)
    layout = make_layout(
        degrees=_read_degrees(values),
        sequence=values.get("sequence_parallel", False),
        precision=precision,
        **{name: values[name] for name in _CHOICES if name in values},
    )
    return MeasuredRun(
        profile=profile,
        layout=layout,
        seconds=values.get("seconds", 0.0),
        optimizer=values.get("optimizer", "adamw"),
        context_by="ring",
        model=values.get("model", profile.name),
        peak_bytes=int(values.get("peak_bytes", 0)),
        where=where,
    )


def _read_cell(name: str, words: str) -> Any:
    """Return the value of a cell that is not empty; raises `InputError` for one that its column cannot have."""
    if name in _WORDS:
        return words
    if name in _FLAGS:
        check(words.lower(), one_of("true", "false", "1", "0", "yes", "no"), name)
        return words.lower() in {"true", "1", "yes"}
    try:
        value: Any = float(words)
    except ValueError:
        value = words
    if name in _AMOUNTS:
        check(value, number(above=0), name)
        return value
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    check(value, integer(minimum=int(name in _COUNTED)), name)
    return value


def _find_profile(values: Mapping[str, Any], folder: Path, known: dict[object, Profile]) -> Profile:
    """Return the profile, one object for all lines of equal shape."""
    if "profile" in values:
        return known.setdefault(values["profile"], Profile.load(folder / values["profile"]))
    shape = {name: values[name] for name in (*_SHAPE_NUMBERS, *_SHAPE_FLAGS) if name in values}
    if missing := [name for name in _SHAPE if name not in shape]:
        raise InputError(f"{missing[0]}: missing; allowed: a whole number, or a file in the column profile")
    shape = {"vocabulary": _VOCABULARY, **shape}
    shape["precision"] = "fp32" if values.get("precision") in {"fp32", "tf32"} else "amp-bf16"
    key = tuple(sorted(shape.items()))
    if key not in known:
        known[key] = describe_transformer(**shape)
    return known[key]


def _read_degrees(values: Mapping[str, Any]) -> Degrees:
    """Return the degrees, with experts on ranks of their own: what data or tensor ranks share with them."""
    degrees = {name: values.get(name, 1) for name in _AXES}
    inner = math.prod(degree for name, degree in degrees.items() if name not in {"data", "expert"})
    devices = values.get("devices", 0)
    if "data" not in values and devices:
        degrees["data"] = max(1, devices // inner)
    expert, data = degrees["expert"], degrees["data"]
    if not devices or devices == inner * data:
        # Data ranks hold the experts; more experts' ranks than there are of them reach over tensor ranks.
        shared = math.gcd(expert, data)
        if (degrees["tensor"] * degrees["context"]) % (expert // shared):
            raise InputError(
                f"expert: got {expert} with {data} data ranks; allowed: a divisor of tensor x context x data"
            )
        degrees.update(expert=shared, data=data // shared)
    elif devices != inner * data * expert:
        raise InputError(
            f"devices: got {devices}; allowed: {inner * data}, which tensor x context x data x pipeline comes to"
        )
    return Degrees(**degrees)


def _check_units(run: MeasuredRun, cluster: Cluster) -> None:
    """Refuse seconds that no such machine can need, and bytes that no device has."""
    if run.seconds:
        peak = peak_flops(cluster, precision_of(run.layout.precision)) * run.layout.devices
        least = run.model_flops / peak
        if run.seconds < least:
            raise InputError(
                f"{run.where}: seconds: got {run.seconds:g}; allowed: at least {least:.3g}, what {run.layout.devices} "
                f"devices of {cluster.name!r} need at their peak; are seconds, batch, devices and precision those of "
                "an iteration?"
            )
        if run.seconds * _UNUSED > least:
            raise InputError(
                f"{run.where}: seconds: got {run.seconds:g}, which is {run.seconds / least:.0f} times what the "
                "devices' peak allows; allowed: seconds of an iteration, not milliseconds"
            )
    memory = cluster.device.memory_bytes
    if memory and run.peak_bytes > memory:
        raise InputError(
            f"{run.where}: peak_bytes: got {run.peak_bytes:g}; allowed: at most the {memory:g} bytes of a device of "
            f"{cluster.name!r}"
        )


def _check_contradictions(runs: Sequence[MeasuredRun]) -> None:
    """Refuse two measurements of one configuration that are further apart than noise."""
    seen: dict[object, MeasuredRun] = {}
    for run in runs:
        first = seen.setdefault((id(run.profile), run.layout, run.optimizer), run)
        if run.seconds and max(run.seconds, first.seconds) > _CONTRADICTION * min(run.seconds, first.seconds):
            raise InputError(
                f"{run.where}: seconds: got {run.seconds:g} where the same run took {first.seconds:g} on "
                f"{first.where}; allowed: repeated runs that agree, or a column in which they differ"
            )
