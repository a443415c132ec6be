"""What values that skip stages take, as part of a chain's numbers: solvers then need not know of them.

A value is counted from the first forward of its maker to the maker's backward, its gradient from the backward of its
last reader to the maker's. Both are alive, or not, by whose backward comes next, as the gradients between stages are:
so they are counted with these. While a stage runs backward, the gradient that arrives and the one it makes both count,
and with them twice what is alive before and after: its temporaries have that taken off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainwright.memory.chain import Stage
from trainwright.memory.execute.counted import tensors_of, total_bytes
from trainwright.memory.execute.stages import Row
from trainwright.memory.execute.values import differentiable

__all__ = ["Skipping"]


class Skipping:
    """The values that skip stages of a row, and their bytes, once they have been seen."""

    def __init__(self, row: Row) -> None:
        self._makers = {name: stage for stage, names in enumerate(row.makes, 1) for name in names}
        self._readers: dict[str, list[int]] = {name: [] for name in self._makers}
        for stage, names in enumerate(row.reads, 1):
            for name in names:
                self._readers[name].append(stage)
        self._bytes: dict[str, tuple[int, int]] = {}

    def see(self, made: Mapping[str, Any], granule: int) -> None:
        """Note what a stage has made."""
        for name, value in made.items():
            tensors = tensors_of(value)
            self._bytes[name] = total_bytes(tensors, granule), total_bytes(filter(differentiable, tensors), granule)

    def counted(self, stages: Sequence[Stage]) -> list[Stage]:
        """Return stages, the loss stage last, with what skips them in their numbers."""
        if not self._makers:
            return list(stages)
        found = []
        for number, stage in enumerate(stages, 1):
            own, before = self._alive(number), self._alive(number - 1)
            twice = sum(size for what, size in own.items() if what in before)
            # A gradient that is there already is one of three while another's is added to it.
            added = sum(2 * self._bytes[name][1] for name, readers in self._readers.items() if number in readers[:-1])
            found.append(
                replace(
                    stage,
                    gradient_bytes=stage.delta_bytes + sum(own.values()),
                    backward_temporary_bytes=stage.backward_temporary_bytes - twice + added,
                )
            )
        return found

    def _alive(self, number: int) -> dict[tuple[str, bool], int]:
        """Return the bytes of the values (False) and gradients (True) alive while a stage's backward is the next."""
        alive = {}
        for name, maker in self._makers.items():
            value, gradient = self._bytes[name]
            if number >= maker:
                alive[name, False] = value
                if number < self._readers[name][-1]:
                    alive[name, True] = gradient
        return alive
