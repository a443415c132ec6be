"""Counter-based random draws in chunks: one generator per draw would cost more than the event itself."""

from collections.abc import Callable

import numpy as np

from trainwright.randomness import rng

__all__ = ["Draws"]

_CHUNK = 1024
_KEPT = 64  # chunks


class Draws:
    """Standard draws by number, each a function of (seed, purpose, series, number) alone."""

    def __init__(self, seed: int, purpose: str, kind: str = "normal") -> None:
        self._seed = seed
        self._purpose = purpose
        self._kind = kind
        self._chunks: dict[tuple[int, int], list[float]] = {}

    def at(self, number: int, series: int = 0) -> float:
        """Return the draw of `number` in a `series`."""
        key = series, number // _CHUNK
        chunk = self._chunks.get(key)
        if chunk is None:
            if len(self._chunks) >= _KEPT:
                del self._chunks[next(iter(self._chunks))]
            generator = rng(self._seed, self._purpose, key[1], series)
            draw: Callable[[int], np.ndarray] = (
                generator.standard_normal if self._kind == "normal" else generator.standard_exponential
            )
            chunk = self._chunks[key] = draw(_CHUNK).tolist()
        return chunk[number % _CHUNK]
