"""Mesh: candidate plans in columns, so that one formula prices one plan or a hundred thousand."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.plan.parallel_plan import Degrees

__all__ = ["AXES", "RECOMPUTE", "SCHEDULES", "Bools", "Floats", "Ints", "Mesh", "numbered"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

AXES = tuple(degree.name for degree in fields(Degrees))
RECOMPUTE = ("none", "selective", "full", "operators")
SCHEDULES = ("", "gpipe", "1f1b", "interleaved")

_LONG = 2**40

_INNER = tuple(name for name in AXES if name not in {"data", "pipeline"})
"""Axes that say how a stage works on a micro-batch."""


@dataclass(frozen=True, eq=False, slots=True)
class Mesh:
    """Candidates, one in a row: degrees (rows, axes in the order of `AXES`) and the other choices of a `ParallelPlan`.

    `recompute` and `schedule` are places in `RECOMPUTE` and `SCHEDULES`.
    """

    batch: int
    degrees: Ints
    micro: Ints
    zero: Ints
    shard: Ints
    sequence: Bools
    recompute: Ints
    schedule: Ints
    chunks: Ints

    @classmethod
    def of(cls, batch: int, degrees: Ints, *, micro: Ints, **choices: Any) -> "Mesh":
        """Return candidates; a choice is a column or one number for all, by default what a plan has by default."""
        rows = len(degrees)
        defaults = {"zero": 0, "shard": 1, "recompute": 0, "schedule": 0, "chunks": 1}
        columns = {
            name: np.broadcast_to(np.asarray(choices.get(name, each), dtype=np.int64), rows)
            for name, each in defaults.items()
        }
        sequence = np.broadcast_to(np.asarray(choices.get("sequence", False), dtype=np.bool_), rows)
        return cls(batch=batch, degrees=degrees, micro=micro, sequence=sequence, **columns)

    @property
    def rows(self) -> int:
        """How many candidates."""
        return len(self.degrees)

    def axis(self, name: str) -> Ints:
        """Return the degrees of one axis."""
        column: Ints = self.degrees[:, AXES.index(name)]
        return column

    @property
    def devices(self) -> Ints:
        """Devices of each."""
        product: Ints = self.degrees.prod(axis=1)
        return product

    @property
    def replicas(self) -> Ints:
        """Into how many parts the batch is divided: ranks of data and of experts work on different samples."""
        return self.axis("data") * self.axis("expert")

    @property
    def microbatches(self) -> Ints:
        """Micro-batches of an iteration."""
        return self.batch // (self.replicas * self.micro)

    def microbatches_of(self, row: int) -> int:
        """Return those of one candidate."""
        parts = self.degrees[row, AXES.index("data")] * self.degrees[row, AXES.index("expert")] * self.micro[row]
        return int(self.batch // parts)

    def group(self, axes: Sequence[str]) -> tuple[Ints, Ints]:
        """Return (ranks, stride) of the groups that these axes, adjacent but for degrees of one, form together."""
        places = sorted(AXES.index(name) for name in axes)
        ranks: Ints = self.degrees[:, places].prod(axis=1)
        first = np.where(self.degrees[:, places] > 1, places, len(AXES)).min(axis=1)
        before = np.concatenate([np.ones((self.rows, 1), dtype=np.int64), self.degrees.cumprod(axis=1)], axis=1)
        return ranks, before[np.arange(self.rows), np.minimum(first, len(AXES))]

    def take(self, rows: Ints | Bools) -> "Mesh":
        """Return some of the candidates."""
        columns = {each.name: getattr(self, each.name)[rows] for each in fields(self) if each.name != "batch"}
        return Mesh(batch=self.batch, **columns)

    def inner(self) -> tuple["Mesh", Ints]:
        """Return the different ways in which one pipeline stage works on a micro-batch, and each candidate's place."""
        ways = [*(self.axis(name) for name in _INNER), self.micro, self.sequence.astype(np.int64)]
        code = np.zeros(self.rows, dtype=np.int64)
        different = 1
        for column in ways:
            # Numbered by what occurs, and anew once codes get long, so that they stay small however many columns.
            numbers, count = numbered(column)
            code = code * count + numbers
            different *= count
            if different > _LONG:
                _, code = np.unique(code, return_inverse=True)
                different = int(code.max(initial=0)) + 1
        _, first, place = np.unique(code, return_index=True, return_inverse=True)
        return self.take(first), np.asarray(place, dtype=np.int64).ravel()


def numbered(column: Ints) -> tuple[Ints, int]:
    """Return small numbers from 0 for the different values of a column of small counts, and how many there are."""
    occurs = np.zeros(int(column.max(initial=0)) + 1, dtype=np.bool_)
    occurs[column] = True
    numbers = np.cumsum(occurs) - 1
    return numbers[column], int(numbers[-1]) + 1
