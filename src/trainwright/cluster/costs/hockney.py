"""Hockney costs of collectives over one kind of link, by algorithm: `alpha` seconds a message, `beta` seconds a byte.

`size` is the whole message in bytes, a number or an array (of an all-gather, what each rank ends with); `ranks` the
number of ranks that exchange. Sources: R. Hockney, Parallel Computing 20 (1994); Thakur, Rabenseifner, Gropp, IJHPCA
19 (2005), for rings; the trees are pipelined in chunks, of which there are as many as cost least.
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["Seconds", "chunk_count", "ring_seconds", "send_seconds", "tree_seconds"]

Seconds = float | NDArray[np.float64]


def send_seconds(size: Seconds, alpha: float, beta: float) -> Seconds:
    """Return the seconds of one message: alpha + m beta."""
    return alpha + size * beta


def ring_seconds(size: Seconds, ranks: int, alpha: float, beta: float) -> Seconds:
    """Return the seconds of one way round a ring: (p - 1)(alpha + m beta / p).

    That is an all-gather, a reduce-scatter or a pairwise all-to-all; an all-reduce is two of them.
    """
    return (ranks - 1) * (alpha + size * (beta / ranks))


def tree_seconds(size: Seconds, ranks: int, alpha: float, beta: float) -> Seconds:
    """Return the seconds of one way through a pipelined tree: (ceil(log2 p) + k - 1)(alpha + m beta / k).

    That is a broadcast or a reduction; an all-reduce is two of them. k is the number of chunks that costs least.
    """
    parts = chunk_count(size, ranks, alpha, beta)
    return (_tree_depth(ranks) + parts - 1) * (alpha + size * beta / parts)


def chunk_count(size: Seconds, ranks: int, alpha: float, beta: float) -> Seconds:
    """Return the number of chunks, at least 1 and of at least a byte each, with which `tree` takes the least time.

    The derivative vanishes at k = sqrt((depth - 1) m beta / alpha); the cost is convex in k, so that the best whole
    number is one of the two next to it.
    """
    # A chunk has at least one byte.
    most = np.maximum(1.0, np.floor(size))
    depth = _tree_depth(ranks)
    if alpha == 0:
        return _same_type(size, most if depth > 1 else np.ones_like(most))
    # The root of the derivative, rounded down; the best whole number is it or the next.
    low = np.clip(np.floor(np.sqrt((depth - 1) * size * beta / alpha)), 1.0, most)
    high = np.minimum(low + 1, most)

    def cost(parts: Seconds) -> Seconds:
        return (depth + parts - 1) * (alpha + size * beta / parts)

    return _same_type(size, np.where(cost(high) < cost(low), high, low))


def _tree_depth(ranks: int) -> int:
    return math.ceil(math.log2(ranks))


def _same_type(size: Seconds, value: NDArray[np.float64]) -> Seconds:
    return value if isinstance(size, np.ndarray) else float(value)
