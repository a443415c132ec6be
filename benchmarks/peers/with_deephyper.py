"""DeepHyper's centralised Bayesian optimisation behind ask and tell; runs in DeepHyper's own environment.

`deephyper` samples the acquisition function's maximum, which is about thirty times faster than the genetic optimiser
of the defaults (`deephyper-default`). A grid column goes in as the integer position in its list (`deephyper`), or as
an ordinal of its values (`deephyper-values`), in which its random cuts rarely part the small values of a logarithmic
grid.
"""

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ConfigSpace.hyperparameters as cs
import deephyper
from benchmarks.peers.columns import Column
from deephyper.hpo import CBO, HpProblem

__all__ = ["METHODS", "Cbo"]


class Cbo:
    """CBO with its extra-trees surrogate; it maximises, so losses go in negated."""

    def __init__(
        self, columns: Sequence[Column], seed: int, *, settings: dict[str, Any] | None = None, values: bool = False
    ) -> None:
        settings = settings or {}
        self._columns = columns
        self._values = values
        problem = HpProblem()
        for column in columns:
            self._add(problem, column)
        # The constructor makes its log directory in any case; nothing is written to it.
        log_dir = str(Path(tempfile.gettempdir()) / f"deephyper-{os.getpid()}")
        self._search = CBO(problem, random_state=seed, log_dir=log_dir, checkpoint_history_to_csv=False, **settings)
        named = ", ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"
        grids = "ordinal values" if values else "integer positions"
        self.version = f"deephyper {deephyper.__version__}; CBO {named}; grids as {grids}"

    def load(self, rows: Sequence[list[float]], losses: Sequence[float]) -> None:
        """Tell finished trials in one call, which fits the surrogate once."""
        self._search.tell([(self._params(row), -loss) for row, loss in zip(rows, losses, strict=True)])

    def ask(self, count: int) -> list[tuple[Any, list[float]]]:
        """Propose rows."""
        return [(params, self._row(params)) for params in self._search.ask(count)]

    def tell(self, tokens: Sequence[Any], losses: Sequence[float]) -> None:
        """Tell losses; this fits the surrogate and optimises the acquisition function."""
        self._search.tell([(params, -loss) for params, loss in zip(tokens, losses, strict=True)])

    def _add(self, problem: HpProblem, column: Column) -> None:
        if column.kind == "int":
            problem.add_hyperparameter((int(column.low), int(column.high)), column.name)
        elif column.kind == "float":
            problem.add_hyperparameter((float(column.low), float(column.high)), column.name)
        elif column.kind == "log_float":
            problem.add_hyperparameter((float(column.low), float(column.high), "log-uniform"), column.name)
        elif column.kind == "choice":
            problem.add_hyperparameter([f"c{position}" for position in range(len(column.values))], column.name)
        elif self._values:
            problem.add(cs.OrdinalHyperparameter(column.name, [float(value) for value in column.values]))
        else:
            problem.add_hyperparameter((0, len(column.values) - 1), column.name)

    def _row(self, params: dict[str, Any]) -> list[float]:
        return [self._position(column, params[column.name]) for column in self._columns]

    def _position(self, column: Column, value: Any) -> float:
        if column.kind == "choice":
            return int(str(value)[1:])
        if column.kind == "ordinal":
            return column.values.index(float(value)) if self._values else int(value)
        return int(value) if column.kind == "int" else float(value)

    def _params(self, row: Sequence[float]) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for column, value in zip(self._columns, row, strict=True):
            if column.kind == "choice":
                params[column.name] = f"c{int(value)}"
            elif column.kind == "ordinal" and self._values:
                params[column.name] = float(column.values[int(value)])
            else:
                params[column.name] = float(value) if column.kind in {"float", "log_float"} else int(value)
        return params


_SAMPLING = {"acq_optimizer": "sampling", "multi_point_strategy": "qUCBd"}

METHODS = {
    "deephyper": partial(Cbo, settings=_SAMPLING),
    "deephyper-values": partial(Cbo, settings=_SAMPLING, values=True),
    "deephyper-default": Cbo,
}
