"""Tables of measured training steps: a CSV file, a run a line, in words that published results use.

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
from trainwright.plan.layout import Degrees, Layout
from trainwright.plan.parallel.candidates import family_name
from trainwright.plan.parallel.precision import precision_of
from trainwright.plan.parallel.roofline import peak_flops
from trainwright.plan.parallel.strategies.registry import AXES

__all__ = ["RUN_COLUMNS", "RunTable", "read_runs"]

_SHAPE = ("hidden", "layers", "heads", "sequence")
_SHAPE_NUMBERS = (*_SHAPE, "vocabulary", "kv_heads", "head_size", "feedforward", "experts", "top_k")
_SHAPE_FLAGS = ("gated", "fused_attention", "tied", "dropout", "biases", "positions")
_STEP_NUMBERS = ("devices", "batch", "micro", "zero", "shard", "chunks")
_AXES = tuple(axis.name for axis in AXES)
_WORDS = ("model", "profile", "precision", "recompute", "optimizer", "schedule")
RUN_COLUMNS = (
    *_WORDS, *_SHAPE_NUMBERS, *_SHAPE_FLAGS, *_STEP_NUMBERS, *_AXES, "sequence_parallel", "seconds", "peak_bytes",
)  # fmt: skip
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
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or ()]
            rows = [{name.strip(): (row[name] or "").strip() for name in reader.fieldnames or ()} for row in reader]
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
    runs = tuple(
        _RunLine(path, number, row, known).read_run(measured=measured) for number, row in enumerate(rows, start=2)
    )
    for run in runs:
        _check_units(run, cluster)
    _check_contradictions(runs)
    return RunTable(runs, tuple(name for name in columns if name not in RUN_COLUMNS))


class _RunLine:
    """One line of a table."""

    def __init__(self, path: Path, number: int, row: Mapping[str, str], known: dict[object, Profile]) -> None:
        self.path, self.row, self.known = path, row, known
        self.where = f"{path}, line {number}"

    def read_run(self, *, measured: bool) -> MeasuredRun:
        """Return the run."""
        profile = self.read_profile()
        degrees = self.read_degrees()
        batch = self.read_number("batch")
        replicas = degrees.data * degrees.expert
        micro = self.read_number("micro", max(1, batch // replicas))
        zero, chunks = self.read_number("zero", 0, least=0), self.read_number("chunks", 1)
        schedule = self.row.get("schedule", "")
        if not schedule and degrees.pipeline > 1:
            schedule = "interleaved" if chunks > 1 else "1f1b"
        precision = self.row.get("precision") or profile.precision
        try:
            precision_of(precision)
            layout = Layout(
                strategy=family_name(degrees, ("data", "zero1", "zero2", "fsdp")[min(zero, 3)]),
                degrees=degrees,
                batch=batch,
                micro_batch=micro,
                microbatches=max(1, batch // (replicas * micro)),
                zero=zero,
                shard=self.read_number("shard", degrees.data),
                sequence=self.read_flag("sequence_parallel", default=False),
                recompute=self.row.get("recompute") or "none",
                schedule=schedule,
                chunks=chunks,
                precision=precision,
            )
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None
        seconds = self.read_amount("seconds") if measured else 0.0
        return MeasuredRun(
            profile=profile,
            layout=layout,
            seconds=seconds,
            optimizer=self.row.get("optimizer") or "adamw",
            ring=True,
            model=self.row.get("model") or profile.name,
            peak_bytes=int(self.read_amount("peak_bytes")) if self.row.get("peak_bytes") else 0,
            where=self.where,
        )

    def read_profile(self) -> Profile:
        """Return the profile, one object for all lines of equal shape."""
        name = self.row.get("profile", "")
        if name:
            return self.known.setdefault(name, Profile.load(self.path.parent / name))
        shape: dict[str, Any] = {}
        for column in _SHAPE_NUMBERS:
            if self.row.get(column) or column in _SHAPE:
                shape[column] = self.read_number(column, least=0)
        shape.setdefault("vocabulary", _VOCABULARY)
        shape.update({name: self.read_flag(name) for name in _SHAPE_FLAGS if self.row.get(name)})
        traced = "fp32" if self.row.get("precision") in {"fp32", "tf32"} else "amp-bf16"
        key = tuple(sorted({**shape, "precision": traced}.items()))
        if key not in self.known:
            try:
                self.known[key] = describe_transformer(**shape, precision=traced)
            except InputError as error:
                raise InputError(f"{self.where}: {error}") from None
        return self.known[key]

    def read_degrees(self) -> Degrees:
        """Return the degrees, with experts on ranks of their own: what data or tensor ranks share with them."""
        degrees = {name: self.read_number(name, 1) for name in _AXES}
        inner = math.prod(degree for name, degree in degrees.items() if name not in {"data", "expert"})
        devices = self.read_number("devices", 0, least=0)
        if not self.row.get("data") and devices:
            degrees["data"] = max(1, devices // inner)
        expert, data = degrees["expert"], degrees["data"]
        if not devices or devices == inner * data:
            # Data ranks hold the experts; more experts' ranks than there are of them reach over tensor ranks.
            shared = math.gcd(expert, data)
            spread = expert // shared
            if (degrees["tensor"] * degrees["context"]) % spread:
                raise InputError(
                    f"{self.where}: expert: got {expert} with {data} data ranks; allowed: a divisor of tensor x "
                    "context x data"
                )
            degrees.update(expert=shared, data=data // shared)
        elif devices != inner * data * expert:
            raise InputError(
                f"{self.where}: devices: got {devices}; allowed: {inner * data}, which tensor x context x data x "
                "pipeline comes to"
            )
        return Degrees(**degrees)

    def read_number(self, name: str, otherwise: int | None = None, *, least: int = 1) -> int:
        """Return a whole number."""
        words = self.row.get(name, "")
        if not words and otherwise is not None:
            return otherwise
        try:
            value = float(words)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value.is_integer() and value >= least):
            raise InputError(f"{self.where}: {name}: got {words!r}; allowed: a whole number >= {least}")
        return int(value)

    def read_amount(self, name: str) -> float:
        """Return a number above 0."""
        words = self.row.get(name, "")
        try:
            value = float(words)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{self.where}: {name}: got {words!r}; allowed: a number above 0")
        return value

    def read_flag(self, name: str, *, default: bool = True) -> bool:
        """Return true or false."""
        words = self.row.get(name, "").lower()
        if not words:
            return default
        if words not in {"true", "false", "1", "0", "yes", "no"}:
            raise InputError(f"{self.where}: {name}: got {words!r}; allowed: true, false")
        return words in {"true", "1", "yes"}


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
                f"{first.where}; allowed: repeated runs that agree, or a column that tells them apart"
            )
