"""Derives seeds: counter-based randomness, where every draw is a function of (seed, purpose, number, draw).

Philox-4x64 (Salmon et al., SC 2011) keyed by BLAKE2b of (seed, purpose); the counter starts at (number, draw).
"""

import hashlib
from functools import lru_cache

import numpy as np

__all__ = ["rng"]


@lru_cache(maxsize=256)
def _key(seed: int, purpose: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def rng(seed: int, purpose: str, number: int, draw: int = 0) -> np.random.Generator:
    """Return the generator of one draw.

    `purpose` names the stream ("initial", "candidates", "forest", "trial", ...), `number` is usually the
    trial's number and `draw` tells repeated draws for one number apart. Equal arguments give equal streams
    on every platform; different ones give independent streams.
    """
    key = np.array(_key(seed, purpose), dtype=np.uint64)
    counter = np.array([0, 0, draw, number], dtype=np.uint64)  # the low words advance as numbers are drawn
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
