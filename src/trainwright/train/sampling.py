"""Which sample stands at which place of an epoch: a function of (seed, epoch, place) alone."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import TrialError
from trainwright.train.permutation import Permutation, scrambled

__all__ = ["SamplingOrder", "SequentialOrder", "ShuffledOrder", "WeightedOrder"]


class SamplingOrder(Protocol):
    """The order of the samples. `size` is their number in an epoch."""

    @property
    def size(self) -> int:
        """How many places an epoch has."""

    def __call__(self, epoch: int, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the indices of the samples at `places`, and what tells repeats of one index in an epoch apart."""


@dataclass(frozen=True)
class SequentialOrder:
    """The samples as they come, every epoch alike."""

    size: int

    def __call__(self, epoch: int, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], None]:  # noqa: ARG002 -- alike
        """Return the places themselves."""
        return places, None


@dataclass(frozen=True)
class ShuffledOrder:
    """Every sample once an epoch, in an order of the epoch's own."""

    size: int
    seed: int

    def __call__(self, epoch: int, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], None]:
        """Return what the epoch's permutation has at `places`."""
        return _permutation(self.size, self.seed, epoch)(places), None


class WeightedOrder:
    """As many draws with replacement as there are samples, each with a chance in proportion to its weight."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        numbers = np.asarray(weights, dtype=np.float64)
        if numbers.ndim != 1 or not np.isfinite(numbers).all() or (numbers < 0).any() or not numbers.sum() > 0:
            raise TrialError(
                f"weights must be finite numbers >= 0, one a sample, not all of them 0; got {weights!r:.80}"
            )
        self.size = len(numbers)
        self._seed = seed
        self._edges = np.cumsum(numbers) / numbers.sum()

    def __call__(self, epoch: int, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the draws at `places`; each is told apart from others of its sample by its place."""
        digest = hashlib.blake2b(f"{self._seed}/weighted/{epoch}".encode(), digest_size=16).digest()
        keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        words = scrambled(scrambled(places.astype(np.uint64) ^ keys[0]) ^ keys[1])
        indices = np.searchsorted(self._edges, words / 2.0**63, side="right")
        return np.minimum(indices, self.size - 1), places  # rounding may leave the last edge below 1


@lru_cache(maxsize=8)
def _permutation(size: int, seed: int, epoch: int) -> Permutation:
    return Permutation(size, seed, epoch)
