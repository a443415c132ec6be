"""A growing collection cut in two: the k least values and the rest, each insertion O(log n)."""

import heapq
from typing import NamedTuple

__all__ = ["LossEntry", "OrderStatistics"]


class LossEntry(NamedTuple):
    """A loss and the trial that had it; ties go to the lower number."""

    loss: float
    trial: int


class OrderStatistics:
    """Two heaps: `kept` holds the k least entries (its greatest on top), `rest` the others (their least on top)."""

    __slots__ = ("_kept", "_rest")

    def __init__(self) -> None:
        self._kept: list[tuple[float, int]] = []  # negated, for heapq is a min-heap
        self._rest: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._kept) + len(self._rest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OrderStatistics):
            return NotImplemented
        return sorted(self._kept) == sorted(other._kept) and sorted(self._rest) == sorted(other._rest)

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def count_below(self) -> int:
        """How many entries are kept."""
        return len(self._kept)

    def push(self, entry: LossEntry) -> None:
        """Add an entry to the side where it belongs, so that the cut stays a cut."""
        # The greatest kept entry separates the halves: what is less belongs below it.
        if self._kept and entry < self.greatest_below():
            heapq.heappush(self._kept, (-entry.loss, -entry.trial))
        else:
            heapq.heappush(self._rest, entry)

    def cut(self, k: int) -> None:
        """Move the cut so that `k` entries are kept; O(log n) for each step that it moves."""
        while len(self._kept) > k:
            loss, trial = heapq.heappop(self._kept)
            heapq.heappush(self._rest, LossEntry(-loss, -trial))
        while len(self._kept) < k and self._rest:
            loss, trial = heapq.heappop(self._rest)
            heapq.heappush(self._kept, (-loss, -trial))

    def greatest_below(self) -> LossEntry:
        """Return the greatest of the kept entries."""
        loss, trial = self._kept[0]
        return LossEntry(-loss, -trial)

    def quantile(self, position: float) -> float:
        """Return the loss at a fractional 0-based place in ascending order, linearly interpolated."""
        # Move the cut to the place below the quantile; both neighbours are then on top of the heaps.
        below = int(position)
        self.cut(below + 1)
        low = self.greatest_below().loss
        share = position - below
        if share == 0 or not self._rest:
            return low
        high = self._rest[0][0]
        return low if high == low else low + share * (high - low)
