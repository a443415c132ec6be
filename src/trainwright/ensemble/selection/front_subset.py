"""A front made short: the few points that span most of its hypervolume."""

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.pareto import hypervolume

__all__ = ["choose_subset", "scale_axes"]


def scale_axes(axes: Array, reference: Array) -> tuple[Array, Array]:
    """Return axes [n, m] and reference [m] in units of the range from the best value to the reference; drop flat axes.

    An axis on which no point is better than the reference, or which is unknown, plays no part.
    """
    # An axis without any improvement over the reference would give a box of no width.
    best = axes.min(axis=0)
    known = reference > best
    return (axes[:, known] - best[known]) / (reference - best)[known], np.ones(int(known.sum()))


def choose_subset(axes: Array, reference: Array, most: int) -> list[int]:
    """Return positions of at most `most` rows of axes [n, m], ascending: the first row, then by what each adds most.

    Adding greedily gives at least 1 - 1/e of the greatest hypervolume (Nemhauser et al., 1978); it is lazy, since what
    a row adds only falls as others are in.
    """
    if len(axes) <= most:
        return list(range(len(axes)))
    rows, corner = scale_axes(axes, reference)
    # The first row has the least loss and always stays.
    chosen = [0]
    volume = hypervolume(rows[chosen], corner)
    gains = np.full(len(rows), np.inf)
    gains[0] = -np.inf
    while len(chosen) < most:
        # Lazy greedy: gains only fall, so a candidate whose recomputed gain is still the greatest is the best
        # of all.
        fresh: set[int] = set()
        while True:
            best = int(gains.argmax())
            if best in fresh:
                break
            gains[best] = hypervolume(rows[[*chosen, best]], corner) - volume
            fresh.add(best)
        chosen.append(best)
        volume += gains[best]
        gains[best] = -np.inf
    return sorted(chosen)
