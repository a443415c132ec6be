"""Lifetimes of the storages of a recorded step: which live when, and how many bytes they hold."""

import bisect
from collections.abc import Collection
from itertools import accumulate

from trainwright.model.trace.recording import Recording

__all__ = ["StorageLives"]


class StorageLives:
    """Answers which storages live when, and how many bytes they hold."""

    def __init__(self, recording: Recording, pending: dict[int, int]) -> None:
        self.storages = recording.storages
        self.pending = pending
        self.fixed = recording.fixed
        # Sorted by birth, so that the storages made in an interval are one slice.
        order = sorted((stored.first, number) for number, stored in recording.storages.items())
        self.order = [number for _, number in order]
        self.firsts = [first for first, _ in order]
        self.backward, self.end = recording.parts["backward"]
        self.changes = self._backward_changes(recording.gradients)

    def made_in(self, first: int, last: int) -> set[int]:
        """Return the storages made by operations first..last."""
        low, high = bisect.bisect_left(self.firsts, first), bisect.bisect_right(self.firsts, last)
        return set(self.order[low:high]) - self.fixed

    def bytes(self, numbers: Collection[int]) -> int:
        """Return the bytes of storages."""
        return sum(self.storages[number].bytes for number in numbers)

    def differentiable(self, number: int) -> bool:
        """Return whether a storage gets a gradient."""
        return self.storages[number].carries_gradient and self.storages[number].floating

    def peak(self, numbers: Collection[int], first: int, last: int) -> int:
        """Return the peak bytes of `numbers` while operations first..last run."""
        return max(self.alive(numbers, first, last + 1), default=0)

    def alive(self, numbers: Collection[int], first: int, past: int) -> list[int]:
        """Return the bytes of `numbers` that live at each operation from `first` to before `past`."""
        # A difference array: plus at birth, minus after death, then one running sum.
        changes = [0] * (past - first + 1)
        for number in numbers:
            stored = self.storages[number]
            start = max(stored.first, first, self.pending.get(number, first))
            # A storage without a last operation has outlived the recording.
            end = past - 1 if stored.last < 0 else min(stored.last, past - 1)
            if start <= end:
                changes[start - first] += stored.bytes
                changes[end + 1 - first] -= stored.bytes
        return list(accumulate(changes[:-1]))

    def backward_live(self, first: int, past: int) -> list[int]:
        """Return the live bytes that backward has made, without gradients of parameters."""
        return self.changes[first - self.backward : past - self.backward]

    def _backward_changes(self, gradients: Collection[int]) -> list[int]:
        made = self.made_in(self.backward, self.end - 1) - set(gradients) if self.end > self.backward else set()
        return self.alive(made, self.backward, self.end) if self.end > self.backward else []
