"""How searches are judged: regret of the incumbent, ranks with ties shared, bootstrap intervals over seeds."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Interval", "average_ranks", "bootstrap", "incumbents"]

Interval = tuple[float, float, float]
Array = NDArray[np.float64]


def incumbents(losses: Array) -> NDArray[np.int64]:
    """Index of the best loss seen so far, after each evaluation; the first of equals stays."""
    best = np.minimum.accumulate(losses)
    improved = np.concatenate([[True], losses[1:] < best[:-1]])
    return np.maximum.accumulate(np.where(improved, np.arange(len(losses)), 0))


def average_ranks(regrets: Sequence[Array]) -> Array:
    """Mean rank (1 = least regret) of methods over cells, from one [cells] array each; equals share their ranks."""
    values = np.stack(regrets)
    less = (values[:, None] > values[None, :]).sum(axis=1)
    equal = (values[:, None] == values[None, :]).sum(axis=1)
    return np.asarray((less + (equal + 1) / 2).mean(axis=1))


def bootstrap(by_table: Mapping[str, Array], draws: int = 10_000) -> Interval:
    """Mean over tables of the mean over seeds, with its 95 % interval: seeds are drawn again inside each table."""
    generator = np.random.default_rng(0)
    mean = float(np.mean([values.mean() for values in by_table.values()]))
    drawn = np.zeros(draws)
    for values in by_table.values():
        drawn += values[generator.integers(len(values), size=(draws, len(values)))].mean(axis=1)
    low, high = np.quantile(drawn / len(by_table), [0.025, 0.975])
    return mean, float(low), float(high)
