"""Placement: units, and the matrix of their batch sizes by device; a point of the space that a search walks through."""

from dataclasses import dataclass, replace

from trainwright.serve.placement.units import Unit

__all__ = ["Matrix", "Placement"]

Matrix = tuple[tuple[int, ...], ...]
"""Batch sizes by device, then unit; 0: no instance."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A matrix [devices][units] of batch sizes, and whose columns they are."""

    units: tuple[Unit, ...]
    matrix: Matrix

    def with_entries(self, *entries: tuple[int, int, int]) -> "Placement":
        """Return the same with (device, unit, batch) entries changed."""
        rows = list(self.matrix)
        for device, unit, batch in entries:
            row = rows[device]
            rows[device] = (*row[:unit], batch, *row[unit + 1 :])
        return replace(self, matrix=tuple(rows))
