"""Iteration times of vTrain's open measurements, each predicted by constants fitted without it.

One server (2, 4, 8 devices): the constants of device, host and links are fitted on three quarters of the model
configurations (hidden size and layers) and predict the fourth, four times; harder, on one hidden size for the other.
Many servers (64, 512 devices): those constants stay as all single-server rows give them, the network's three are
fitted on four fifths of the rows and predict the fifth, five times. Folds are drawn by counter-based randomness.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.plan.coverage import Coverage, coverage
from numpy.typing import NDArray

from trainwright.plan.fit import Constant, fit_constants, leave_out
from trainwright.plan.fit_transformer import (
    COLUMNS,
    NETWORK_CONSTANTS,
    SERVER_CONSTANTS,
    TransformerSteps,
    transformer_seconds,
)
from trainwright.randomness import rng

__all__ = ["Part", "many_servers", "one_server", "rank_agreement"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Measured and predicted seconds of every row, and the constants of a fit on all of them."""

    runs: TransformerSteps
    measured: Floats
    predicted: Floats
    """Of each row by the fit that had not seen it."""
    coverage: Coverage
    """By the 90 % intervals of those fits."""
    constants: Mapping[str, float]
    folds: int

    @property
    def errors(self) -> Floats:
        """Relative errors."""
        found: Floats = np.abs(self.predicted / self.measured - 1)
        return found


def one_server(path: Path, *, by: str = "shape", folds: int = 4, seed: int = 0) -> Part:
    """Predict every row of a single server by constants fitted on other shapes, or on other hidden sizes alone."""
    runs, measured = _read(path)
    shapes = np.stack([runs.hidden, runs.layers if by == "shape" else runs.hidden], axis=1)
    _, shape = np.unique(shapes, axis=0, return_inverse=True)
    fold = _folds(int(shape.max()) + 1, folds, seed)[shape.ravel()]
    return _part(SERVER_CONSTANTS, {}, runs, measured, fold)


def many_servers(path: Path, server: Mapping[str, float], *, folds: int = 5, seed: int = 0) -> Part:
    """Predict every row of many servers by network constants fitted on others, with the constants of a server."""
    runs, measured = _read(path)
    return _part(NETWORK_CONSTANTS, server, runs, measured, _folds(len(measured), folds, seed))


def rank_agreement(parts: Sequence[Part]) -> float:
    """Return the mean Kendall tau-b of predicted and measured seconds within groups of one model, batch and size."""
    from scipy.stats import kendalltau

    found: list[float] = []
    for part in parts:
        groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
        for place in range(len(part.measured)):
            names = ("hidden", "heads", "layers", "sequence", "batch", "devices")
            groups[tuple(float(getattr(part.runs, name)[place]) for name in names)].append(place)
        found += [
            float(kendalltau(part.predicted[places], part.measured[places]).statistic)
            for places in groups.values()
            if len(places) > 1
        ]
    return float(np.mean(found))


def _part(
    constants: Sequence[Constant], fixed: Mapping[str, float], runs: TransformerSteps, measured: Floats, fold: Floats
) -> Part:
    def predict(values: Mapping[str, float]) -> Floats:
        return transformer_seconds({**fixed, **values}, runs)

    covariates = {name: getattr(runs, name) for name in COLUMNS}
    predicted, low, high = np.zeros((3, len(measured)))
    for number in np.unique(fold):
        held = fold == number
        fit, every = leave_out(constants, predict, measured, held, starts=2, covariates=covariates)
        predicted[held] = every[held]
        low[held], high[held] = (end[held] for end in fit.interval(every, covariates=covariates))
    everything = fit_constants(constants, predict, measured, starts=2)
    return Part(
        runs=runs,
        measured=measured,
        predicted=predicted,
        coverage=coverage(low, high, measured),
        constants=everything.values,
        folds=len(np.unique(fold)),
    )


def _folds(count: int, folds: int, seed: int) -> Floats:
    """Return the fold of each of `count` things, as even as can be."""
    order = rng(seed, "folds", 0).permutation(count)
    found = np.zeros(count)
    found[order] = np.arange(count) % min(folds, count)
    return found


def _read(path: Path) -> tuple[TransformerSteps, Floats]:
    names = {
        "# GPUs": "devices",
        "global batch": "batch",
        "micro batch": "micro",
        "hidden size": "hidden",
        "attention heads": "heads",
        "# layers": "layers",
        "sequence length": "sequence",
        "tensor parallelism": "tensor",
        "data parallelism": "data",
        "pipeline parallelism": "pipeline",
    }
    with path.open() as file:
        rows = list(csv.DictReader(file))
    columns: dict[str, Any] = {ours: np.array([float(row[theirs]) for row in rows]) for theirs, ours in names.items()}
    assert set(columns) == set(COLUMNS)
    return TransformerSteps(**columns), np.array([float(row["iteration time (ms)"]) / 1e3 for row in rows])
