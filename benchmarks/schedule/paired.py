"""Paired comparisons: finished studies that are kept, and figures of them with 95 % bootstrap intervals."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "Interval",
    "Kept",
    "Part",
    "Rows",
    "Setting",
    "average",
    "entered",
    "growth",
    "holds",
    "ratio",
    "shown",
]

Interval = tuple[float, float, float]
"""A figure, and the ends of its interval."""

Rows = list[list[str]]
"""Of a table: claim, measured, and whether it holds."""

Part = tuple[dict[str, float], Rows]
"""The numbers of a summary, and the rows."""


@dataclass
class Kept:
    """Measures of finished studies, in a file of lines if one is given."""

    path: Path | None
    values: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.values = dict(json.loads(line) for line in self.path.read_text().splitlines())

    def of(self, key: str, make: Callable[[], Sequence[float]]) -> list[float]:
        """Return what is known by this name, or find it out."""
        if key not in self.values:
            self.add(key, make())
        return self.values[key]

    def add(self, key: str, values: Sequence[float]) -> None:
        """Keep the measures of one more study."""
        self.values[key] = [float(value) for value in values]
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([key, self.values[key]]) + "\n")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run of the benchmark is about."""

    seeds: int
    units: float
    kept: Kept


def average(values: np.ndarray) -> Interval:
    """Return the mean over studies."""
    return _bootstrap(lambda i: np.mean(values[i], axis=1), len(values))


def ratio(over: np.ndarray, under: np.ndarray) -> Interval:
    """Return the ratio of means; half a count is added to both sums, for there may be none."""
    return _bootstrap(lambda i: _ratio(over[i], under[i]), len(over))


def growth(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> Interval:
    """Return by what factor a ratio of means has grown."""

    def grown(i: np.ndarray) -> Any:
        return _ratio(after[0][i], after[1][i]) / _ratio(before[0][i], before[1][i])

    return _bootstrap(grown, len(before[0]))


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    found: np.ndarray = (over.sum(axis=1) + 0.5) / (under.sum(axis=1) + 0.5)
    return found


def _bootstrap(statistic: Callable[[np.ndarray], Any], studies: int) -> Interval:
    """Return a statistic of all studies, and its interval over draws of them: rows of their numbers."""
    drawn = statistic(np.random.default_rng(0).integers(0, studies, (4000, studies)))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(statistic(np.arange(studies)[None])[0]), float(low), float(high)


def shown(value: Interval, form: str = ".2f") -> str:
    """Set a figure with its interval."""
    return f"{value[0]:{form}} ({value[1]:{form}} to {value[2]:{form}})"


def holds(value: Interval, than: float) -> str:
    """Say whether a figure is above another: yes and no only where the interval leaves no doubt."""
    return "yes" if value[1] > than else "no" if value[2] < than else "open"


def entered(name: str, value: Interval) -> dict[str, float]:
    """Return a figure and its interval as numbers of a summary."""
    name = name.replace("-", "_")
    return {name: value[0], f"{name}_low": value[1], f"{name}_high": value[2]}
