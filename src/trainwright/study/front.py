"""Which points no other point beats."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["non_dominated"]


def non_dominated(losses: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each row of losses [n, m] (minimised) whether no other row is as good everywhere and better somewhere.

    Equal rows are all kept. O(n * front) after a sort.
    """
    order = np.lexsort(losses.T[::-1])
    keep = np.zeros(len(losses), dtype=np.bool_)
    front: list[int] = []
    for i in order:
        row = losses[i]
        others = losses[front]
        if not ((others <= row).all(axis=1) & (others < row).any(axis=1)).any():
            keep[i] = True
            front.append(int(i))
    return keep
