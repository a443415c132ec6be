"""Problems with epochs: the LCBench surrogate, continuous, and TaskSet's tables, by the nearest of their rows."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.randomness import rng
from trainwright.space import Float, Int, Space
from trainwright.space.parameters import Parameter

__all__ = ["CurveProblem", "find_curves"]

Array = NDArray[np.float64]

_TASKS = 6  # of LCBench's data sets, the first ones
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

    def curve(self, params: Mapping[str, Any]) -> Array:
        """Return the losses of a configuration, +inf where it diverged."""
        found: Array = self.model(self.space.encode(params)[None, :])[0]
        return found

    def regret(self, loss: float) -> float:
        """Return how far a loss is from the best, the median being 1; at most 1, below 0 if better than the best."""
        return min(1.0, (loss - self.best) / (self.median - self.best)) if np.isfinite(loss) else 1.0


def find_curves(data: Path) -> Iterator[CurveProblem]:
    """Yield all problems of a folder; LCBench's need onnxruntime."""
    yield from _lcbench(data / "yahpo_lcbench")
    for path in sorted((data / "taskset").glob("*.npz")):
        table = _Table(path)
        yield _problem(path.stem.removeprefix("FixedTextRNNClassification_imdb_"), "taskset", table.space, table)


def _problem(name: str, family: str, space: Space, model: Any) -> CurveProblem:
    curves = model(space.sample(rng(0, "reference", 0), _REFERENCE))
    lowest = curves.min(axis=1)
    lowest = lowest[np.isfinite(lowest)]
    return CurveProblem(
        name=name, family=family, space=space, best=float(lowest.min()), median=float(np.median(lowest)), model=model
    )


class _Table:
    """The nearest of a table's rows, in units of the space."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            values, names, losses = arrays["hp"].astype(float), arrays["hp_names"].tolist(), arrays["valid_loss"]
        self.space = Space.of({str(name): _range(column) for name, column in zip(names, values.T, strict=True)})
        self.length = losses.shape[1]
        self._losses = np.where(np.isfinite(losses), losses, np.inf).astype(float)
        self._rows = self.space.encode_all([dict(zip(map(str, names), row, strict=True)) for row in values.tolist()])

    def __call__(self, rows: Array) -> Array:
        """Return the curve of the row nearest to each."""
        nearest = [int(((self._rows - row) ** 2).sum(axis=1).argmin()) for row in rows]
        found: Array = self._losses[nearest]
        return found


def _range(column: Array) -> Parameter:
    low, high = float(column.min()), float(column.max())
    return Float(low, high, log=low > 0 and high / low > 10**_MOST_DECADES)


def _lcbench(folder: Path) -> Iterator[CurveProblem]:
    try:
        runtime = import_module("onnxruntime")
    except ImportError:
        return
    if not (folder / "model.onnx").is_file():
        return
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    net = runtime.InferenceSession(str(folder / "model.onnx"), options)
    listed = {each["name"]: each for each in json.loads((folder / "config_space.json").read_text())["hyperparameters"]}
    codes: dict[str, int] = json.loads((folder / "encoding.json").read_text())["OpenML_task_id"]
    names = ["batch_size", "learning_rate", "momentum", "weight_decay", "num_layers", "max_units", "max_dropout"]
    space = Space.of({name: _parameter(listed[name]) for name in names})
    for task in listed["OpenML_task_id"]["choices"][:_TASKS]:
        model = _Surrogate(net, codes[task], space, names, int(listed["epoch"]["upper"]))
        yield _problem(task, "lcbench", space, model)


def _parameter(entry: Mapping[str, Any]) -> Parameter:
    kind = Int if entry["type"] == "uniform_int" else Float
    return kind(entry["lower"], entry["upper"], log=bool(entry["log"]))


class _Surrogate:
    """Validation errors (percent) that the network gives."""

    def __init__(self, net: Any, code: int, space: Space, names: list[str], length: int) -> None:
        self._net, self._code, self._space, self._names, self.length = net, code, space, names, length

    def __call__(self, rows: Array) -> Array:
        """Return the curves of rows of the space."""
        values = np.array([[params[name] for name in self._names] for params in self._space.decode(rows)], dtype=float)
        epochs = np.tile(np.arange(1, self.length + 1), len(rows))[:, None]
        inputs = np.concatenate([epochs, np.repeat(values, self.length, axis=0)], axis=1).astype(np.float32)
        codes = np.full((len(inputs), 1), self._code, np.int32)
        found = self._net.run(None, {"x_cont": inputs, "x_cat": codes})[0]
        errors: Array = 100.0 - found[:, 1].astype(float).reshape(len(rows), self.length)
        return errors
