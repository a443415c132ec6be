"""Members for a storm of kills: a few lines of numpy in a module of their own, so that workers start soon."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["StormRunner", "member_says"]


class StormRunner:
    """The members of a unit: what member k says of a row depends on k and on the row's sum."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._places = start["places"]

    def __call__(self, x: Any, members: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield (k, probabilities [N, 2]) for each of these members of the unit."""
        for k in members:
            yield k, member_says(self._places[k], x)


def member_says(member: int, x: Any) -> Any:
    chance = 1.0 / (1.0 + np.exp(-(member + 1) * x.sum(axis=1, dtype=np.float64)))
    return np.stack([chance, 1.0 - chance], axis=1)
