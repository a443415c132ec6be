"""Maps between the unit interval and a parameter's numbers: linear and log scales, grids, rounded integers, codes.

An axis maps a *unit* (what the matrix holds) to a *number* (a float's or int's value, a choice's position) and back.
Its fields are arrays with one entry a column: a single column's axis broadcasts over a vector of units, the stacked
axis of all columns of one kind over a matrix. One expression a kind is what keeps a thousand rows under 0.1 ms.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np

from trainwright.aliases import Array

__all__ = ["Axis", "Code", "Grid", "Linear", "Log", "RoundedLog"]


@dataclass(frozen=True, eq=False)
class Axis(ABC):
    """One map; `count`, `all_units` and `place` ask about a single column."""

    continuous: ClassVar[bool] = False

    @classmethod
    def of(cls, **numbers: float) -> Self:
        """Return the axis of one column."""
        return cls(**{name: np.array([number], dtype=np.float64) for name, number in numbers.items()})

    @classmethod
    def stack(cls, axes: Sequence["Axis"]) -> Self:
        """Return the axis of several columns of this kind."""
        return cls(**{f.name: np.concatenate([getattr(axis, f.name) for axis in axes]) for f in fields(cls)})

    @property
    def count(self) -> int | None:
        """Number of discrete values; None = continuous."""
        return None

    @property
    def slack(self) -> float:
        """How far rounding may move a unit on its way to a number and back; 0 where units are exact."""
        return 0.0

    def all_units(self) -> Array:
        """Return all canonical units of a discrete column, from low to high; none of a continuous one."""
        return np.empty(0)

    def place(self, number: float) -> float:
        """Return where a number within the bounds lies, without snapping it to a grid."""
        return float(self.to_units(np.array([number]))[0])

    def snap_units(self, u: Array) -> Array:
        """Return the units that `to_units(to_numbers(u))` would give."""
        return self.to_units(self.to_numbers(u))

    @abstractmethod
    def to_numbers(self, u: Array) -> Array:
        """Return the numbers of units, clipped to the bounds."""

    @abstractmethod
    def to_units(self, numbers: Array) -> Array:
        """Return the units of numbers."""


@dataclass(frozen=True, eq=False)
class Linear(Axis):
    """u = (x - low) / (high - low)."""

    low: Array
    high: Array
    continuous: ClassVar[bool] = True

    @property
    def slack(self) -> float:
        """A few units in the last place of the greatest number, as a share of the range."""
        return _rounding_slack(self.low, self.high)

    def to_numbers(self, u: Array) -> Array:
        """Return low + u (high - low)."""
        # Rounding may carry the sum just beyond a bound.
        return np.minimum(np.maximum(self.low + u * (self.high - self.low), self.low), self.high)

    def to_units(self, numbers: Array) -> Array:
        """Return the place between low and high."""
        return (numbers - self.low) / (self.high - self.low)


@dataclass(frozen=True, eq=False)
class Log(Axis):
    """u = (ln x - ln low) / (ln high - ln low)."""

    low: Array
    high: Array
    continuous: ClassVar[bool] = True

    @property
    def slack(self) -> float:
        """As on a linear axis of the logarithms."""
        return _rounding_slack(np.log(self.low), np.log(self.high))

    def to_numbers(self, u: Array) -> Array:
        """Return exp(ln low + u (ln high - ln low))."""
        start, end = np.log(self.low), np.log(self.high)
        numbers: Array = np.exp(start + u * (end - start))
        return np.minimum(np.maximum(numbers, self.low), self.high)

    def to_units(self, numbers: Array) -> Array:
        """Return the place between ln low and ln high."""
        start, end = np.log(self.low), np.log(self.high)
        units: Array = (np.log(numbers) - start) / (end - start)
        return np.minimum(np.maximum(units, 0.0), 1.0)


@dataclass(frozen=True, eq=False)
class Grid(Axis):
    """`points` equal cells: index = min(points - 1, floor(u points)), u = (index + 0.5) / points.

    The number is low + index step. `decimals` is 10^digits of low and step, so that 0.1 + 2 * 0.1 gives 0.3; it is 0
    where that many digits do not fit a float.
    """

    low: Array
    step: Array
    points: Array
    high: Array
    decimals: Array

    @property
    def count(self) -> int | None:
        """Number of grid points."""
        return int(self.points[0])

    def all_units(self) -> Array:
        """Return the middles of all cells."""
        return (np.arange(self.points[0]) + 0.5) / self.points

    def place(self, number: float) -> float:
        """Return where a number lies between the middles of the cells."""
        # A bound of a condition need not be on the grid.
        on_grid = self.to_units(np.array([number]))
        if abs(self.to_numbers(on_grid) - number) <= 1e-9 * self.step:
            return float(on_grid[0])  # exactly the unit that rows hold, so that ties compare as ties
        # The middle of cell i is at (i + 0.5) / points; numbers in between lie there in proportion.
        return float(((number - self.low) / self.step + 0.5)[0] / self.points[0])

    def snap_units(self, u: Array) -> Array:
        """Return the middle of each unit's cell."""
        return (self._cell_index(u) + 0.5) / self.points

    def to_numbers(self, u: Array) -> Array:
        """Return low + index step."""
        numbers = self.low + self.step * self._cell_index(u)
        # Decimal rounding undoes the binary error of low + index * step.
        rounded = np.rint(numbers * self.decimals) / np.maximum(self.decimals, 1.0)
        return np.minimum(np.where(self.decimals > 0, rounded, numbers), self.high)

    def to_units(self, numbers: Array) -> Array:
        """Return the middle of the cell of each grid point."""
        return (np.rint((numbers - self.low) / self.step) + 0.5) / self.points

    def _cell_index(self, u: Array) -> Array:
        return np.maximum(np.minimum(np.floor(u * self.points), self.points - 1), 0.0)


@dataclass(frozen=True, eq=False)
class RoundedLog(Axis):
    """Whole numbers on a log scale: u = (ln k - ln(low - 1/2)) / (ln(high + 1/2) - ln(low - 1/2))."""

    low: Array
    high: Array

    @property
    def count(self) -> int | None:
        """Number of whole numbers."""
        return int(self.high[0] - self.low[0]) + 1

    def all_units(self) -> Array:
        """Return the place of every whole number."""
        return self.to_units(np.arange(self.low[0], self.high[0] + 1))

    def to_numbers(self, u: Array) -> Array:
        """Return the nearest whole number in the bounds."""
        # Half a unit beyond both bounds, so that the first and the last number have whole cells.
        start, end = np.log(self.low - 0.5), np.log(self.high + 0.5)
        numbers: Array = np.rint(np.exp(start + u * (end - start)))
        return np.minimum(np.maximum(numbers, self.low), self.high)

    def to_units(self, numbers: Array) -> Array:
        """Return the place of ln k."""
        start, end = np.log(self.low - 0.5), np.log(self.high + 0.5)
        units: Array = (np.log(numbers) - start) / (end - start)
        return units


@dataclass(frozen=True, eq=False)
class Code(Axis):
    """A position 0 .. points - 1 without order; unit and number are the same."""

    points: Array

    @property
    def count(self) -> int | None:
        """Number of positions."""
        return int(self.points[0])

    def all_units(self) -> Array:
        """Return all positions."""
        return np.arange(self.points[0])

    def snap_units(self, u: Array) -> Array:
        """Return the nearest position."""
        # np.rint rounds halves to even; positions are whole numbers, so halves come only from foreign rows.
        return np.minimum(np.maximum(np.rint(u), 0.0), self.points - 1)

    def to_numbers(self, u: Array) -> Array:
        """Return the position."""
        return u

    def to_units(self, numbers: Array) -> Array:
        """Return the position."""
        return numbers


def _rounding_slack(low: Array, high: Array) -> float:
    """Return eight times the rounding error of numbers as large as the bounds, in units."""
    # The error of a number near the larger bound, divided by the range, is its error in units.
    largest = float(np.maximum(np.abs(low), np.abs(high))[0])
    # Eight times, because each operation on the way to a number and back rounds once more.
    return 8.0 * float(np.finfo(np.float64).eps) * (1.0 + (1.0 + largest) / float((high - low)[0]))
