"""Problems with epochs: the LCBench surrogate, continuous, and tables of recorded curves, by the nearest of their rows.

A folder of tables, such as TaskSet's, is a family: each of its `.npz` files holds `hp` [rows, columns] with `hp_names`,
and `valid_loss` [rows, epochs], where what is not finite has diverged. A study trains each row of a table once: a
configuration has the curve of the nearest row that is left. With repeats a search is judged by how its proposals
happen to fall around a thousand rows: in eight columns 200 proposals of a model met 34 of them, random ones 84.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.randomness import rng
from trainwright.space import Choice, Float, Int, Space
from trainwright.space.parameters import Parameter

__all__ = ["CurveProblem", "LCBench", "find_curves"]

Array = NDArray[np.float64]

_TASKS = 6  # of LCBench's data sets, the first ones
_EPOCHS = 50  # of AlgoPerf's runs: fiftieths of
_SHARE = 0.9  # the time allowed
_LEAST = 20  # rows that make a table
_REFERENCE = 1500  # random configurations, whose best and median set the scale
_MOST_DECADES = 1.5  # of a table's column that is taken as linear


@dataclass(frozen=True, kw_only=True)
class CurveProblem:
    """What is searched: losses at every epoch of any configuration; an epoch takes one unit of time."""

    name: str
    family: str
    space: Space
    best: float  # least loss at any epoch of a random configuration, of many
    median: float
    model: Any = field(repr=False)  # gives curves [rows, epochs] of rows of the space

    @property
    def length(self) -> int:
        """Epochs of a whole training."""
        return int(self.model.length)

    def start(self) -> Callable[[Mapping[str, Any]], Array]:
        """Return what gives one study the losses [epochs] of a configuration, +inf where it diverged."""
        trained: set[int] = set()
        return lambda params: self.model.curve(self.space.encode(params), trained)

    def regret(self, loss: float) -> float:
        """Return how far a loss is from the best, the median being 1; at most 1, below 0 if better than the best."""
        return min(1.0, (loss - self.best) / (self.median - self.best)) if np.isfinite(loss) else 1.0


def find_curves(data: Path, families: Sequence[str] | None = None) -> Iterator[CurveProblem]:
    """Yield all problems of a folder; LCBench's need onnxruntime, AlgoPerf's polars."""
    special: dict[str, tuple[str, Callable[[Path], Iterator[tuple[str, _Table | _Surrogate]]]]] = {
        "yahpo_lcbench": ("lcbench", _lcbench),
        "algoperf": ("algoperf", _algoperf),
    }
    for folder in sorted(path for path in data.iterdir() if path.is_dir()):
        family, read = special.get(folder.name, (folder.name, _tables))
        if families is None or family in families:
            for name, model in read(folder):
                yield _problem(name, family, model.space, model)


def _tables(folder: Path) -> Iterator[tuple[str, "_Table"]]:
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            if {"hp", "hp_names", "valid_loss"} <= set(arrays.files):
                names, values = [str(name) for name in arrays["hp_names"]], arrays["hp"].astype(float)
                space = Space.of({name: _range(column) for name, column in zip(names, values.T, strict=True)})
                rows = [dict(zip(names, row, strict=True)) for row in values.tolist()]
                name = path.stem.removeprefix("FixedTextRNNClassification_imdb_")
                yield name, _Table(space, rows, arrays["valid_loss"])


def _problem(name: str, family: str, space: Space, model: Any) -> CurveProblem:
    curves = model(space.sample(rng(0, "reference", 0), _REFERENCE))
    lowest = curves.min(axis=1)
    lowest = lowest[np.isfinite(lowest)]
    return CurveProblem(
        name=name, family=family, space=space, best=float(lowest.min()), median=float(np.median(lowest)), model=model
    )


class _Table:
    """The nearest of a table's rows, in units of the space."""

    def __init__(self, space: Space, rows: Sequence[Mapping[str, Any]], losses: Array, *, once: bool = True) -> None:
        self.space, self._once = space, once  # whether a study trains each row once
        self.length = losses.shape[1]
        self._losses = np.where(np.isfinite(losses), losses, np.inf).astype(float)
        self.rows = space.encode_all(rows)

    def __call__(self, rows: Array) -> Array:
        """Return the curve of the row nearest to each."""
        nearest = [int(((self.rows - row) ** 2).sum(axis=1).argmin()) for row in rows]
        found: Array = self._losses[nearest]
        return found

    def curve(self, row: Array, trained: set[int]) -> Array:
        """Return the curve of the nearest row that is not among those trained, if any is left, and add it."""
        distances = ((self.rows - row) ** 2).sum(axis=1)
        if self._once and len(trained) < len(distances):
            distances[list(trained)] = np.inf
        nearest = int(distances.argmin())
        trained.add(nearest)
        found: Array = self._losses[nearest]
        return found


def _range(column: Array) -> Parameter:
    low, high = float(column.min()), float(column.max())
    return Float(low, high, log=low > 0 and high / low > 10**_MOST_DECADES)


def _algoperf(folder: Path) -> Iterator[tuple[str, _Table]]:
    """Yield AlgoPerf's workloads: the metric at fiftieths of 0.9 of the time allowed; a run that ended keeps its last.

    The columns are the submission, an optimiser, and which of its five settings was run. A curve is the median of the
    repetitions; of a setting that was not run, that of the setting nearest to it.
    """
    try:
        import polars as pl
    except ImportError:
        return
    runs = pl.read_parquet(folder / "algoperf_runs.parquet").filter(pl.col("ruleset") == "external_tuning")
    curves = pl.read_parquet(folder / "algoperf_curves.parquet").join(runs, on="run")
    for (workload,), rows in sorted(curves.group_by("workload")):
        found: dict[tuple[str, int], list[Array]] = {}
        for _, run in sorted(rows.group_by("run")):
            spent = run["submission_time_s"].to_numpy() / float(run["max_runtime_s"][0])
            values = run["val_metric"].to_numpy().astype(float) * (1.0 if run["metric"][0] == "loss" else -1.0)
            latest = np.searchsorted(spent, _SHARE * np.arange(1, _EPOCHS + 1) / _EPOCHS, side="right") - 1
            curve = np.where(latest < 0, np.inf, values[np.maximum(latest, 0)])
            found.setdefault((str(run["submission"][0]), int(run["trial"][0])), []).append(curve)
        if len(found) < _LEAST:
            continue
        submissions, settings = sorted({name for name, _ in found}), [setting for _, setting in found]
        space = Space(submission=Choice(*submissions), setting=Int(min(settings), max(settings)))
        params = [{"submission": submission, "setting": setting} for submission, setting in found]
        yield (
            str(workload),
            _Table(space, params, np.array([np.median(alike, axis=0) for alike in found.values()]), once=False),
        )


@dataclass(frozen=True, kw_only=True)
class LCBench:
    """The surrogate of a folder: the network, its parameters by name in the order of its inputs, and its data sets."""

    net: Any
    parameters: dict[str, dict[str, Any]]
    epochs: int
    codes: dict[str, int]  # of the first data sets, by name

    @classmethod
    def of(cls, folder: Path) -> "LCBench | None":
        """Open it; None without onnxruntime, or without the model."""
        try:
            runtime = import_module("onnxruntime")
        except ImportError:
            return None
        if not (folder / "model.onnx").is_file():
            return None
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        net = runtime.InferenceSession(str(folder / "model.onnx"), options)
        space = json.loads((folder / "config_space.json").read_text())["hyperparameters"]
        listed = {each["name"]: each for each in space}
        codes = json.loads((folder / "encoding.json").read_text())["OpenML_task_id"]
        names = ["batch_size", "learning_rate", "momentum", "weight_decay", "num_layers", "max_units", "max_dropout"]
        return cls(
            net=net,
            parameters={name: listed[name] for name in names},
            epochs=int(listed["epoch"]["upper"]),
            codes={task: codes[task] for task in listed["OpenML_task_id"]["choices"][:_TASKS]},
        )

    def predict(self, code: int, values: Array) -> Array:
        """Return [rows, epochs, outputs] of one data set for values [rows, parameters]."""
        epochs = np.tile(np.arange(1, self.epochs + 1), len(values))[:, None]
        inputs = np.concatenate([epochs, np.repeat(values, self.epochs, axis=0)], axis=1).astype(np.float32)
        codes = np.full((len(inputs), 1), code, np.int32)
        found: Array = self.net.run(None, {"x_cont": inputs, "x_cat": codes})[0].astype(float)
        return found.reshape(len(values), self.epochs, -1)


def _lcbench(folder: Path) -> Iterator[tuple[str, "_Surrogate"]]:
    lcbench = LCBench.of(folder)
    if lcbench is not None:
        for task, code in lcbench.codes.items():
            yield task, _Surrogate(lcbench, code)


def _parameter(entry: Mapping[str, Any]) -> Parameter:
    kind = Int if entry["type"] == "uniform_int" else Float
    return kind(entry["lower"], entry["upper"], log=bool(entry["log"]))


class _Surrogate:
    """Validation errors (percent) that the network gives for one data set."""

    def __init__(self, lcbench: LCBench, code: int) -> None:
        self._lcbench, self._code, self.length = lcbench, code, lcbench.epochs
        self.space = Space.of({name: _parameter(entry) for name, entry in lcbench.parameters.items()})

    def __call__(self, rows: Array) -> Array:
        """Return the curves of rows of the space."""
        names = self._lcbench.parameters
        values = np.array([[params[name] for name in names] for params in self.space.decode(rows)], dtype=float)
        errors: Array = 100.0 - self._lcbench.predict(self._code, values)[:, :, 1]
        return errors

    def curve(self, row: Array, trained: set[int]) -> Array:  # noqa: ARG002 -- for tables
        """Return the curve of a row, the same each time."""
        found: Array = self(row[None, :])[0]
        return found
