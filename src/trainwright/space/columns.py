"""The columns of a space, and the maps over whole matrices of them.

A row is a float64 vector with one entry a Float, Int or Choice parameter, in the order of the space: the unit for
numbers and ordered choices, the position for the others, NaN where the parameter is inactive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainwright.aliases import Array
from trainwright.space.axes import Axis, Code
from trainwright.space.parameters import Varying

__all__ = ["Column", "Columns", "make_column"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """What a model of the rows has to know of one column."""

    name: str
    kind: Literal["unit", "choice"]  # unit interval, or positions 0 .. points - 1 without order
    points: int | None  # number of discrete values; None = continuous
    ordered: bool  # discrete values in order: Int, a stepped Float, Choice(ordered=True)


def make_column(name: str, parameter: Varying) -> Column:
    """Return the column of a parameter."""
    axis = parameter.axis
    kind: Literal["unit", "choice"] = "choice" if isinstance(axis, Code) else "unit"
    return Column(name=name, kind=kind, points=axis.count, ordered=axis.count is not None and kind == "unit")


class Columns:
    """The axes of all columns, grouped by kind so that one expression maps all columns of a kind."""

    def __init__(self, parameters: Sequence[Varying]) -> None:
        self.axes = [parameter.axis for parameter in parameters]
        by_kind: dict[type[Axis], list[int]] = {}
        for index, axis in enumerate(self.axes):
            by_kind.setdefault(type(axis), []).append(index)
        self._groups = [
            (_make_indexer(indexes), kind.stack([self.axes[index] for index in indexes]))
            for kind, indexes in by_kind.items()
        ]
        # The largest value of each column: the last position of a choice without order, else 1.
        self._tops = np.array(
            [axis.count - 1.0 if isinstance(axis, Code) and axis.count else 1.0 for axis in self.axes]
        )
        # A value that no active row can hold, on the side where one cut parts active from inactive.
        self._outside = np.array([float(axis.count or 0) if isinstance(axis, Code) else -1.0 for axis in self.axes])
        # Columns with a law of their own; uniform ones need no map, and plain choices share one.
        self._quantiles = [
            (index, parameter.quantile)
            for index, parameter in enumerate(parameters)
            if not parameter.even and not _plain_choice(parameter)
        ]
        self.densities = [(index, p.log_density) for index, p in enumerate(parameters) if not p.even]
        codes = [index for index, parameter in enumerate(parameters) if _plain_choice(parameter)]
        self._codes = _make_indexer(codes) if codes else None
        # Positions count from 0, so their number is one above the last.
        self._code_points = self._tops[codes] + 1.0

    def quantile(self, p: Array) -> Array:
        """Return the latent rows of points of the unit cube, column by column through the priors and weights."""
        U = np.array(p, dtype=np.float64)
        # Choices without weights: p selects one of `points` equal intervals; p = 1 belongs to the last.
        if self._codes is not None:
            U[:, self._codes] = np.minimum(np.floor(U[:, self._codes] * self._code_points), self._code_points - 1.0)
        for index, quantile in self._quantiles:
            U[:, index] = quantile(U[:, index])
        return U

    def snap_units(self, U: Array) -> Array:
        """Return canonical units; NaN stays NaN."""
        out: Array = np.minimum(np.maximum(U, 0.0), self._tops)
        for where, axis in self._groups:
            # Continuous units are canonical as they are, once clipped.
            if not axis.continuous:
                out[:, where] = axis.snap_units(out[:, where])
        return out

    def to_numbers(self, U: Array) -> Array:
        """Return the numbers of rows; NaN stays NaN."""
        out = np.empty_like(U)
        for where, axis in self._groups:
            out[:, where] = axis.to_numbers(U[:, where])
        return out

    def to_units(self, numbers: Array) -> Array:
        """Return the rows of numbers; NaN stays NaN."""
        out = np.empty_like(numbers)
        for where, axis in self._groups:
            out[:, where] = axis.to_units(numbers[:, where])
        return out

    def fill(self, U: Array) -> Array:
        """Return rows without NaN: inactive units are -1, inactive positions the number of positions."""
        return np.where(np.isnan(U), self._outside, U)


def _plain_choice(parameter: Varying) -> bool:
    return isinstance(parameter.axis, Code) and getattr(parameter, "weights", None) is None


def _make_indexer(indexes: list[int]) -> slice | list[int]:
    # A slice is a view: much cheaper than fancy indexing, and most spaces list their kinds in runs.
    # One step between all indexes makes a slice of them.
    steps = set(np.diff(indexes).tolist()) or {1}
    if len(steps) == 1:
        step = steps.pop()
        return slice(indexes[0], indexes[-1] + 1, step)
    return indexes
