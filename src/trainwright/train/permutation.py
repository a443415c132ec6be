"""A keyed permutation of 0..n-1 that is evaluated place by place, so that an order needs no memory and no history.

An alternating Feistel network over Z_a x Z_b with a b >= n, walked along its cycles until it is back below n (Black &
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
"""

import hashlib
from dataclasses import dataclass, field
from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Permutation", "scrambled"]

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
        while outside.size:  # fewer than one in sqrt(size) of the network's values are
            found[outside] = self._network(found[outside])
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64).reshape(places.shape)

    def _network(self, values: Words) -> Words:
        columns = max(1, isqrt(self.size - 1) + 1) if self.size else 1
        rows = -(-self.size // columns)
        left, right = np.divmod(values, np.uint64(columns))
        # A Feistel network over a rectangle of rows and columns: each half is shifted by a keyed function of
        # the other, which can be undone whatever that function is.
        for number in range(0, _ROUNDS, 2):
            left = (left + scrambled(right ^ self._keys[number])) % np.uint64(rows)
            right = (right + scrambled(left ^ self._keys[number + 1])) % np.uint64(columns)
        return left * np.uint64(columns) + right


def scrambled(words: Words) -> Words:
    """Return 63 scrambled bits for each word (the finaliser of SplitMix64): a place can be added without overflow."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (words ^ (words >> np.uint64(31))) >> np.uint64(1)
