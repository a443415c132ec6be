"""The five maps between the unit interval and the numbers of a parameter.

An axis maps a *unit* (what the matrix holds) to a *number* (a float's or int's value, a choice's position) and back.
Its fields are floats for one column, or arrays with one entry a column for a group of columns of one kind: the same
expression then maps the whole group, which is what keeps a thousand rows under a tenth of a millisecond.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Axis", "Code", "Field", "Grid", "Linear", "Log", "Mask", "RoundedLog"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Field = float | Array


@dataclass(frozen=True)
class Axis:
    """One map, or one a column of a group; `snap` gives the units that `units(numbers(u))` would give."""

    continuous: ClassVar[bool] = False

    @property
    def count(self) -> int | None:
        """Number of discrete values of one column; None = continuous."""
        return None

    @classmethod
    def stack(cls, axes: Sequence[Self]) -> Self:
        """Return the axis whose fields are arrays over `axes`."""
        return cls(**{field.name: np.array([getattr(axis, field.name) for axis in axes]) for field in fields(cls)})

    def snap(self, u: Array) -> Array:
        """Return the nearest canonical units."""
        return self.units(self.numbers(u))

    def place(self, number: float) -> float:
        """Return where a number within the bounds lies on one column, without snapping it to a grid."""
        return float(self.units(np.array([number]))[0])

    def numbers(self, u: Array) -> Array:
        """Return the numbers of units, clipped to the bounds."""
        raise NotImplementedError

    def units(self, numbers: Array) -> Array:
        """Return the units of numbers."""
        raise NotImplementedError


@dataclass(frozen=True)
class Linear(Axis):
    """u = (x - low) / (high - low)."""

    low: Field
    high: Field
    continuous: ClassVar[bool] = True

    def snap(self, u: Array) -> Array:
        """Return the units, clipped to [0, 1]."""
        return np.minimum(np.maximum(u, 0.0), 1.0)

    def numbers(self, u: Array) -> Array:
        """Return low + u (high - low)."""
        return np.minimum(np.maximum(self.low + u * (self.high - self.low), self.low), self.high)

    def units(self, numbers: Array) -> Array:
        """Return the place between low and high."""
        return (numbers - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Log(Axis):
    """u = (ln x - ln low) / (ln high - ln low)."""

    low: Field
    high: Field
    continuous: ClassVar[bool] = True

    def snap(self, u: Array) -> Array:
        """Return the units, clipped to [0, 1]."""
        return np.minimum(np.maximum(u, 0.0), 1.0)

    def numbers(self, u: Array) -> Array:
        """Return exp(ln low + u (ln high - ln low))."""
        start, end = np.log(self.low), np.log(self.high)
        return np.minimum(np.maximum(np.exp(start + u * (end - start)), self.low), self.high)

    def units(self, numbers: Array) -> Array:
        """Return the place between ln low and ln high."""
        start, end = np.log(self.low), np.log(self.high)
        return np.minimum(np.maximum((np.log(numbers) - start) / (end - start), 0.0), 1.0)


@dataclass(frozen=True)
class Grid(Axis):
    """`points` equal cells: index = min(points - 1, floor(u points)), u = (index + 0.5) / points.

    The number is low + index step. `decimals` is 10^digits of the bounds and the step, so that 0.1 + 2 * 0.1 is 0.3;
    it is 0 where that many digits do not fit a float.
    """

    low: Field
    step: Field
    points: Field
    high: Field
    decimals: Field

    @property
    def count(self) -> int | None:
        """Number of grid points."""
        return int(self.points)

    def snap(self, u: Array) -> Array:
        """Return the middle of each unit's cell."""
        return (self._index(u) + 0.5) / self.points

    def numbers(self, u: Array) -> Array:
        """Return low + index step."""
        numbers = self.low + self.step * self._index(u)
        rounded = np.rint(numbers * self.decimals) / np.maximum(self.decimals, 1.0)
        return np.minimum(np.where(self.decimals, rounded, numbers), self.high)

    def units(self, numbers: Array) -> Array:
        """Return the middle of the cell of each grid point."""
        return (np.rint((numbers - self.low) / self.step) + 0.5) / self.points

    def place(self, number: float) -> float:
        """Return where a number lies between the middles of the cells."""
        on_grid = self.units(np.array([number]))
        if abs(float(self.numbers(on_grid)[0]) - number) <= 1e-9 * float(self.step):
            return float(on_grid[0])  # exactly the unit that rows hold, so that ties compare as ties
        return float(((number - self.low) / self.step + 0.5) / self.points)

    def _index(self, u: Array) -> Array:
        return np.maximum(np.minimum(np.floor(u * self.points), self.points - 1), 0.0)


@dataclass(frozen=True)
class RoundedLog(Axis):
    """Whole numbers on a log scale: u = (ln k - ln(low - 1/2)) / (ln(high + 1/2) - ln(low - 1/2))."""

    low: Field
    high: Field

    @property
    def count(self) -> int | None:
        """Number of whole numbers."""
        return int(self.high - self.low) + 1

    def numbers(self, u: Array) -> Array:
        """Return the nearest whole number in the bounds."""
        start, end = np.log(self.low - 0.5), np.log(self.high + 0.5)
        return np.minimum(np.maximum(np.rint(np.exp(start + u * (end - start))), self.low), self.high)

    def units(self, numbers: Array) -> Array:
        """Return the place of ln k."""
        start, end = np.log(self.low - 0.5), np.log(self.high + 0.5)
        return (np.log(numbers) - start) / (end - start)


@dataclass(frozen=True)
class Code(Axis):
    """A position 0 .. points - 1 without order; unit and number are the same."""

    points: Field

    @property
    def count(self) -> int | None:
        """Number of positions."""
        return int(self.points)

    def snap(self, u: Array) -> Array:
        """Return the nearest position."""
        return np.minimum(np.maximum(np.rint(u), 0.0), self.points - 1)

    def numbers(self, u: Array) -> Array:
        """Return the position."""
        return u

    def units(self, numbers: Array) -> Array:
        """Return the position."""
        return numbers
