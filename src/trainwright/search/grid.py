"""Grid search: every combination of the discrete values and of evenly spaced points on the continuous columns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SearchError, SpaceExhausted
from trainwright.search.searcher import propose
from trainwright.search.view import SearchView
from trainwright.settings import Settings
from trainwright.space.configuration import Configuration
from trainwright.space.parameters import Varying
from trainwright.validators import integer

__all__ = ["GridSearcher"]

_MOST = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class GridSearcher(Settings, error=SearchError):
    """Walk a grid in lexicographic order, trial n at legal point n; raises SpaceExhausted at its end.

    `points` per continuous column, bounds included, even on the column's (log) scale; discrete columns are taken
    whole. Points that conditions make equal count once. A point that was tried leaves its trial the next untried one.
    """

    points: Annotated[int, integer(minimum=1)] = 5

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return the grid point of each number; the grid is made once per study."""
        rows, keys = self._cached_grid(view)
        taken: set[bytes] = set()
        proposals = []
        for number in numbers:
            # Trial n takes point n; if that was tried, the next untried one.
            turn = ((number + step) % len(keys) for step in range(len(keys)))
            index = next((i for i in turn if keys[i] not in view.tried and keys[i] not in taken), None)
            if index is None:
                raise SpaceExhausted(f"all {len(keys)} points of the grid have been tried")
            taken.add(keys[index])
            proposals.append(propose(view, rows[index], number, searcher="grid"))
        return proposals

    def _cached_grid(self, view: SearchView) -> tuple[NDArray[np.float64], list[bytes]]:
        known = view.memo.get(self)
        if known is None:
            known = view.memo[self] = self._make_grid(view)
        return cast(tuple[NDArray[np.float64], list[bytes]], known)

    def _make_grid(self, view: SearchView) -> tuple[NDArray[np.float64], list[bytes]]:
        space = view.space
        # A finite space is listed whole, each legal point once.
        if space.size is not None and space.size <= _MOST:
            rows = space.enumerate()
            return rows, space.row_keys(rows)
        counts = {column.name: column.points or self.points for column in space.columns}
        size = math.prod(counts.values())
        if size > _MOST:
            sizes = " * ".join(f"{count} ({name})" for name, count in counts.items())
            raise SearchError(
                f"GridSearcher: the grid has {sizes} = {size} points, at most {_MOST} are allowed; "
                "give fewer points=, a step= to wide integers, or use QuasiRandomSearcher"
            )
        rows = space.settle(np.stack(np.meshgrid(*self._levels(view), indexing="ij"), axis=-1).reshape(size, -1))
        rows = rows[space.legal(rows)]
        keys = space.row_keys(rows)
        # Points that differ in inactive columns only are one; the first of them stays.
        first = {key: place for place, key in reversed(list(enumerate(keys)))}
        chosen = sorted(first.values())
        return rows[chosen], [keys[place] for place in chosen]

    def _levels(self, view: SearchView) -> list[NDArray[np.float64]]:
        even = np.linspace(0.0, 1.0, self.points) if self.points > 1 else np.array([0.5])
        return [
            even if column.points is None else cast(Varying, view.space.parameters[column.name]).axis.all_units()
            for column in view.space.columns
        ]
