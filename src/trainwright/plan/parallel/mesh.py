"""The device mesh of candidate plans, in columns: one formula prices one plan or a hundred thousand; its axes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RECOMPUTE", "SCHEDULES", "Bools", "Floats", "Ints", "Mesh", "ParallelAxis", "numbered"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RECOMPUTE = ("none", "selective", "full", "operators", "offload")
SCHEDULES = ("", "gpipe", "1f1b", "interleaved", "zero-bubble")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelAxis:
    """What a strategy declares of the axis that it divides along: a field of `Degrees`."""

    name: str
    order: int
    """Ranks of the axis with the lowest order are next to each other, so that they share a node."""
    divides_samples: bool = False
    """Whether its ranks work on different samples of the batch."""
    copies_weights: bool = False
    """Whether its ranks hold copies of the weights, so that gradients are summed over them."""
    inside_stage: bool = True
    """Whether it says how a stage works on a micro-batch."""
    exclusive: str = ""
    """Of axes with the same word here, a plan has one at most."""


@dataclass(frozen=True, eq=False, slots=True)
class Mesh:
    """Candidates, one in a row: degrees (rows, axes in order) and the other choices of a `Layout`.

    `recompute` and `schedule` are places in `RECOMPUTE` and `SCHEDULES`.
    """

    batch: Ints
    axes: tuple[ParallelAxis, ...]
    degrees: Ints
    micro: Ints
    zero: Ints
    shard: Ints
    sequence: Bools
    recompute: Ints
    schedule: Ints
    chunks: Ints

    @classmethod
    def of(cls, batch: int, degrees: Ints, *, axes: Sequence[ParallelAxis], micro: Ints, **choices: Any) -> "Mesh":
        """Return candidates; a choice is a column or one number for all, by default what a plan has by default."""
        rows = len(degrees)
        defaults = {"zero": 0, "shard": 1, "recompute": 0, "schedule": 0, "chunks": 1}
        columns = {
            name: np.broadcast_to(np.asarray(choices.get(name, each), dtype=np.int64), rows)
            for name, each in defaults.items()
        }
        sequence = np.broadcast_to(np.asarray(choices.get("sequence", False), dtype=np.bool_), rows)
        samples = np.full(rows, batch, dtype=np.int64)
        return cls(batch=samples, axes=tuple(axes), degrees=degrees, micro=micro, sequence=sequence, **columns)

    @property
    def rows(self) -> int:
        """How many candidates."""
        return len(self.degrees)

    def place(self, name: str) -> int:
        """Return the column of an axis."""
        return next(column for column, axis in enumerate(self.axes) if axis.name == name)

    def axis(self, name: str) -> Ints:
        """Return the degrees of one axis."""
        column: Ints = self.degrees[:, self.place(name)]
        return column

    @property
    def devices(self) -> Ints:
        """Devices of each."""
        product: Ints = self.degrees.prod(axis=1)
        return product

    @property
    def replicas(self) -> Ints:
        """Into how many parts the batch is divided."""
        product: Ints = self.degrees[:, [axis.divides_samples for axis in self.axes]].prod(axis=1)
        return product

    @property
    def microbatches(self) -> Ints:
        """Micro-batches of an iteration."""
        return self.batch // (self.replicas * self.micro)

    def microbatches_of(self, row: int) -> int:
        """Return those of one candidate."""
        replicas = self.degrees[row, [axis.divides_samples for axis in self.axes]].prod()
        return int(self.batch[row] // (replicas * self.micro[row]))

    def group(self, axes: Sequence[str]) -> tuple[Ints, Ints]:
        """Return (ranks, stride) of the groups that these axes, adjacent but for degrees of one, form together."""
        places = sorted(self.place(name) for name in axes)
        # The stride is the product of all degrees before the first axis of the group that is above one.
        ranks: Ints = self.degrees[:, places].prod(axis=1)
        first = np.where(self.degrees[:, places] > 1, places, len(self.axes)).min(axis=1)
        before = np.concatenate([np.ones((self.rows, 1), dtype=np.int64), self.degrees.cumprod(axis=1)], axis=1)
        return ranks, before[np.arange(self.rows), np.minimum(first, len(self.axes))]

    def take(self, rows: Ints | Bools) -> "Mesh":
        """Return some of the candidates."""
        return Mesh(axes=self.axes, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    @classmethod
    def join(cls, parts: "Sequence[Mesh]") -> "Mesh":
        """Return the candidates of several meshes, one after the other."""
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        return cls(axes=parts[0].axes, **columns)

    def inner(self) -> tuple["Mesh", Ints]:
        """Return the different ways in which one pipeline stage works on a micro-batch, and each candidate's place."""
        ways = [
            *(self.axis(axis.name) for axis in self.axes if axis.inside_stage),
            self.micro,
            self.sequence.astype(np.int64),
        ]
        # Numbered by what occurs, so that codes stay small.
        numbers, counts = zip(*map(numbered, ways), strict=True)
        _, first, place = np.unique(np.ravel_multi_index(numbers, counts), return_index=True, return_inverse=True)
        return self.take(first), np.asarray(place, dtype=np.int64).ravel()


_COLUMNS = tuple(column.name for column in fields(Mesh) if column.name != "axes")


def numbered(column: Ints) -> tuple[Ints, int]:
    """Return small numbers from 0 for the different values of a column of small counts, and how many there are."""
    occurs = np.zeros(int(column.max(initial=0)) + 1, dtype=np.bool_)
    occurs[column] = True
    numbers = np.cumsum(occurs) - 1
    return numbers[column], int(numbers[-1]) + 1
