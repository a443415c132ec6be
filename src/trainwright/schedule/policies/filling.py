"""Water-filling of finishing times: who gets how many devices so that the last ends as early as it can."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rows", "fill"]

Floats = NDArray[np.float64]


def fill(ends: Floats, costs: Floats, supply: float) -> NDArray[np.intp]:
    """Return for each of n trials the choice, of L, by which the latest end is least within `supply`.

    `ends` and `costs`, both (L, n), are when a trial ends by each choice (inf: not allowed) and the devices that it
    takes; the first choice costs nothing, later ones cost more. Of all choices that end early enough a trial gets the
    cheapest. The optimum is exact: the latest end is one of `ends`, found by bisection. O(L n log(L n)).
    """
    columns = np.arange(ends.shape[1])
    least = ends.argmin(axis=0)
    levels = np.unique(ends[np.isfinite(ends)])

    def chosen(level: float) -> NDArray[np.intp]:
        early = ends <= level
        found: NDArray[np.intp] = np.where(early.any(axis=0), early.argmax(axis=0), least)
        return found

    # Bisection over the possible latest ends: the earliest one whose choices fit within the supply.
    low, high = np.searchsorted(levels, ends.min(axis=0).max()), len(levels) - 1
    high = min(high, int(np.searchsorted(levels, ends[0].max())))
    while low < high:
        middle = (int(low) + int(high)) // 2
        if costs[chosen(levels[middle]), columns].sum() <= supply:
            high = middle
        else:
            low = middle + 1
    return chosen(levels[high])


class Rows:
    """What is known of each trial that runs, in columns: O(1) to change one, all at once to look at them."""

    NAMES = ("since", "togo", "after", "chance", "alone", "size", "speed", "settled", "looked")

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._columns = np.zeros((len(self.NAMES), 64))
        self.trials: list[int] = []

    def __contains__(self, trial: int) -> bool:
        return trial in self._places

    def __len__(self) -> int:
        return len(self.trials)

    def put(self, trial: int, *values: float) -> None:
        """Set a trial's row, in the order of `NAMES`."""
        place = self._places.get(trial)
        if place is None:
            place = self._places[trial] = len(self.trials)
            self.trials.append(trial)
            if place == self._columns.shape[1]:
                self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        self._columns[:, place] = values

    def drop(self, trial: int) -> None:
        """Forget a trial; the last takes its place."""
        place, last = self._places.pop(trial), self.trials.pop()
        if last != trial:
            self._columns[:, place] = self._columns[:, len(self.trials)]
            self._places[last], self.trials[place] = place, last

    def place(self, trial: int) -> int:
        """Return the number of its row."""
        return self._places[trial]

    def column(self, name: str) -> Floats:
        """Return a column, a view."""
        return self._columns[self.NAMES.index(name), : len(self.trials)]
