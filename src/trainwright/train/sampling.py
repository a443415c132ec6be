"""Shuffles the samples of an epoch: their order is a function of (seed, epoch, position) alone, without state.

The order is a keyed permutation: an alternating Feistel network over Z_a x Z_b with a b >= n, walked along its cycles
until it is back below n (Black & Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainwright.errors import TrialError

__all__ = ["Permutation", "SamplingOrder", "SequentialOrder", "ShuffledOrder", "WeightedOrder"]

Words: TypeAlias = NDArray[np.uint64]

_ROUNDS = 12


@dataclass(frozen=True)
class Permutation:
    """The permutation of 0..size-1 that belongs to `seed` and `number`; any place of it is found in O(1).

    `purpose` tells streams of one seed apart.
    """

    size: int
    seed: int
    number: int
    purpose: str = "order"
    _keys: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text = f"{self.seed}/{self.purpose}/{self.number}".encode()
        words = (hashlib.blake2b(text, digest_size=8, salt=bytes([number])).digest() for number in range(_ROUNDS))
        keys = np.array([int.from_bytes(word, "little") for word in words], dtype=np.uint64)
        object.__setattr__(self, "_keys", keys)

    def __call__(self, places: ArrayLike) -> NDArray[np.int64]:
        """Return what stands at each of `places`, whole numbers in [0, size), as an array of their shape."""
        places = np.asarray(places, dtype=np.uint64)
        found = self._network(places.ravel())
        # Cycle walking: the network permutes a few more numbers than there are places; whatever lies
        # outside goes through it again until it lies inside, which keeps the whole a permutation.
        outside = np.flatnonzero(found >= self.size)
        # Fewer than one in sqrt(size) of the network's values are.
        while outside.size:
            found[outside] = self._network(found[outside])
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64).reshape(places.shape)

    def _network(self, values: Words) -> Words:
        # Columns about the square root: the rectangle then has few places more than there are numbers.
        columns = max(1, isqrt(self.size - 1) + 1) if self.size else 1
        rows = -(-self.size // columns)
        left, right = np.divmod(values, np.uint64(columns))
        # A Feistel network over a rectangle of rows and columns: each half is shifted by a keyed function of
        # the other, which can be undone whatever that function is.
        for number in range(0, _ROUNDS, 2):
            left = (left + scramble_bits(right ^ self._keys[number])) % np.uint64(rows)
            right = (right + scramble_bits(left ^ self._keys[number + 1])) % np.uint64(columns)
        return left * np.uint64(columns) + right


def scramble_bits(words: Words) -> Words:
    """Return 63 scrambled bits for each word (the finaliser of SplitMix64): a place can be added without overflow."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (words ^ (words >> np.uint64(31))) >> np.uint64(1)


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
        return Permutation(self.size, self.seed, epoch)(places), None


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
        words = scramble_bits(scramble_bits(places.astype(np.uint64) ^ keys[0]) ^ keys[1])
        # 63 bits as a number from 0 to 1: the sample is the one whose share of the sums it falls into.
        indices = np.searchsorted(self._edges, words / 2.0**63, side="right")
        # Rounding may leave the last edge below 1.
        return np.minimum(indices, self.size - 1), places


SamplingOrder: TypeAlias = SequentialOrder | ShuffledOrder | WeightedOrder
"""From an epoch and places in it to the indices of the samples there, and what tells repeats of one index apart."""
