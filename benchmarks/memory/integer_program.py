"""An integer programme that grows by variables and rows, for HiGHS."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

__all__ = ["Integer", "Solved", "Terms"]

Terms = list[tuple[int, float]]
"""Columns and their factors."""


@dataclass(frozen=True, slots=True)
class Solved:
    """What HiGHS has found."""

    values: NDArray[np.float64] | None
    """None: nothing of less cost than the known."""
    bound: float
    """No solution costs less; at most the known cost."""
    finished: bool


class Integer:
    """Least cost; every variable lies between 0 and what it is given at most."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self._whole: list[int] = []
        self._most: list[float] = []
        self._rows: tuple[list[int], list[int], list[float]] = ([], [], [])
        self._low: list[float] = []
        self._high: list[float] = []

    def variable(self, cost: float = 0.0, *, whole: bool = True, most: float = 1.0) -> int:
        """Add a variable and return its column."""
        self.cost.append(cost)
        self._whole.append(int(whole))
        self._most.append(most)
        return len(self.cost) - 1

    def row(self, terms: Iterable[tuple[int | None, float]], low: float = -math.inf, high: float = math.inf) -> None:
        """Add a limit on a sum; terms without a column are those of variables that there are not."""
        if -math.inf < low < high < math.inf:
            terms = list(terms)
            self.row(terms, low=low)
            low = -math.inf
        place = len(self._low)
        for column, factor in terms:
            if column is not None and factor:
                self._rows[0].append(place)
                self._rows[1].append(column)
                self._rows[2].append(factor)
        self._low.append(low)
        self._high.append(high)

    def solve(self, limit_seconds: float, *, gap: float, known: float = math.inf) -> Solved:
        """Return what HiGHS finds in so many seconds of the clock; nothing that costs more than the known is searched.

        A known cost is a solution too: a last variable y multiplies every limit, and where it and all others are 0, the
        cost is the known. Without any solution scipy would not tell the bound.
        """
        from scipy.sparse import coo_array, hstack

        cost, low, high, most = (np.array(each) for each in (self.cost, self._low, self._high, self._most))
        whole, least, count = np.array(self._whole), np.zeros(len(cost)), len(cost)
        places, columns, factors = self._rows
        matrix = coo_array((factors, (places, columns)), shape=(len(low), count))
        if math.isfinite(known):
            limit = np.where(np.isfinite(low), low, high)
            low, high = np.where(np.isfinite(low), 0.0, low), np.where(np.isfinite(high), 0.0, high)
            matrix = hstack([matrix, coo_array(-limit[:, None]), coo_array((len(low), 1))])
            cost, whole = np.append(cost, [-known, known]), np.append(whole, [1, 0])
            least, most = np.append(least, [0.0, 1.0]), np.append(most, [1.0, 1.0])
        answer = milp(
            cost,
            integrality=whole,
            bounds=Bounds(least, most),
            constraints=LinearConstraint(matrix.tocsr(), low, high),
            options={"time_limit": limit_seconds, "mip_rel_gap": gap},
        )
        if answer.status == 2:
            return Solved(None, math.inf, finished=True)
        found = answer.x is not None and (math.isinf(known) or answer.x[count] > 0.5)
        bound = -math.inf if answer.mip_dual_bound is None else float(answer.mip_dual_bound)
        return Solved(answer.x[:count] if found else None, min(known, bound), finished=answer.status == 0)
