"""Joint plans as lists of operations, changed row by row: the last search, which any list that runs can come out of.

The searches before it say what is kept, made again and sent away, and leave to a rule where copies stand. Here a row
is moved, a value leaves or stays, is made once more or not at all, in another way, or is fetched where it was made
again. So a stage may run twice in a phase (what it has saved is on its way to the host, and its bare output is read),
and each copy has a place of its own. Annealing on the compiled simulator's seconds.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from trainwright.kernels import Ints
from trainwright.memory.sizes import Sizes
from trainwright.randomness import rng

if TYPE_CHECKING:
    from trainwright.memory._placed import Limits

__all__ = ["polished"]

_STARTS = 4
_HEATS = (0.06, 0.01)
_TRIES = 30_000
_NUMBERS = 17


def polished(
    sizes: Sizes, limits: "Limits", starts: Iterable[tuple[float, Ints]], *, scale: float
) -> Iterator[tuple[float, Ints]]:
    """Yield the seconds and rows that come out of the fastest of some; `scale` times as many tries as otherwise."""
    from trainwright.memory._lists import polish

    different = {rows.tobytes(): (seconds, rows) for seconds, rows in starts if np.isfinite(seconds)}
    fastest = sorted(different.values(), key=lambda each: (each[0], len(each[1])))[:_STARTS]
    for number, (seconds, rows) in enumerate(fastest):
        best, least = rows, seconds
        for turn, heat in enumerate(_HEATS):
            draws = rng(number, "lists", turn).random((int(scale * _TRIES), _NUMBERS))
            best, least = polish(sizes, limits, best, draws, heat)
        yield least, best
