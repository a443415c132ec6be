"""Uniform random search, the floor under every table; needs the standard library only."""

import math
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.columns import Column

__all__ = ["METHODS", "Random"]


class Random:
    """Draw each column uniformly (log columns in the logarithm), independently, with replacement."""

    version = "uniform 1"

    def __init__(self, columns: Sequence[Column], seed: int) -> None:
        self._columns = columns
        self._random = random.Random(f"random/{seed}")

    def load(self, rows: Sequence[list[float]], losses: Sequence[float]) -> None:
        """Forget: nothing is learnt."""

    def ask(self, count: int) -> list[tuple[Any, list[float]]]:
        """Draw rows."""
        return [(None, [self._draw(column) for column in self._columns]) for _ in range(count)]

    def tell(self, tokens: Sequence[Any], losses: Sequence[float]) -> None:
        """Forget: nothing is learnt."""

    def _draw(self, column: Column) -> float:
        if column.kind == "int":
            return self._random.randint(int(column.low), int(column.high))
        if column.kind == "float":
            return self._random.uniform(column.low, column.high)
        if column.kind == "log_float":
            return math.exp(self._random.uniform(math.log(column.low), math.log(column.high)))
        return self._random.randrange(len(column.values))


METHODS = {"random": Random}
