"""Iteration times of vTrain's open measurements, each predicted by constants fitted without it.

One server (2, 4, 8 devices): the constants of device, host and links are fitted on three quarters of the model
configurations (hidden size and layers) and predict the fourth, four times; harder, on one hidden size for the other.
Many servers (64, 512 devices): those constants stay as all single-server rows give them, the network's three are
fitted on four fifths of the rows and predict the fifth, five times. Folds are drawn by counter-based randomness.

Each row is predicted twice by the same fold: by the constants alone, and with what the fold's other rows of the same
block (hidden size, heads, sequence, micro-batch, tensor ranks) took more or less than that, at other depths, degrees of
data and pipeline and batches. It stands for a block that was profiled, as vTrain profiles each operator.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.plan.coverage import Coverage, coverage
from benchmarks.plan.effects import effects_of
from benchmarks.plan.fit import FitConstant, fit_constants, leave_out
from benchmarks.plan.fit_transformer import (
    COLUMNS,
    NETWORK_CONSTANTS,
    SERVER_CONSTANTS,
    TransformerSteps,
    transformer_seconds,
)
from numpy.typing import NDArray

from trainwright.randomness import rng

__all__ = ["Part", "Predicted", "Ranks", "many_servers", "one_server", "ranks"]

Floats = NDArray[np.float64]

BLOCK = ("hidden", "heads", "sequence", "micro", "tensor")
"""What decides the shapes of a block's operators on a device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What fits that had not seen a row predict for it."""

    seconds: Floats
    error: float
    """Mean relative error."""
    coverage: Coverage
    """By the 90 % intervals of those fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Measured seconds of every row, predictions of both kinds, and the constants of a fit on all rows."""

    runs: TransformerSteps
    measured: Floats
    by_constants: Predicted
    by_blocks: Predicted
    """Corrected by the rows of the same block that the fit had seen."""
    constants: Mapping[str, float]
    folds: int


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Means over groups of one model, batch and number of devices."""

    tau: float
    """Kendall's tau-b of predicted and measured seconds."""
    regret: float
    """How much longer the row that is predicted fastest took than the fastest, as a share."""


def ranks(pairs: Sequence[tuple[Part, Predicted]]) -> Ranks:
    """Return how well predictions order the rows of each group."""
    from scipy.stats import kendalltau

    taus: list[float] = []
    regrets: list[float] = []
    for part, found in pairs:
        groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
        for place in range(len(part.measured)):
            names = ("hidden", "heads", "layers", "sequence", "batch", "devices")
            groups[tuple(float(getattr(part.runs, name)[place]) for name in names)].append(place)
        for places in groups.values():
            if len(places) > 1:
                predicted, measured = found.seconds[places], part.measured[places]
                taus.append(float(kendalltau(predicted, measured).statistic))
                regrets.append(float(measured[predicted.argmin()] / measured.min() - 1))
    return Ranks(tau=float(np.mean(taus)), regret=float(np.mean(regrets)))


def _part(
    constants: Sequence[FitConstant], fixed: Mapping[str, float], runs: TransformerSteps, measured: Floats, fold: Floats
) -> Part:
    def predict(values: Mapping[str, float]) -> Floats:
        return transformer_seconds({**fixed, **values}, runs)

    covariates = {name: getattr(runs, name) for name in COLUMNS}
    blocks = list(zip(*(getattr(runs, name).tolist() for name in BLOCK), strict=True))
    plain, corrected = np.zeros((2, 3, len(measured)))
    for number in np.unique(fold):
        held = fold == number
        fit, every = leave_out(constants, predict, measured, held, starts=2, covariates=covariates)
        plain[:, held] = np.stack([every, *fit.interval(every, covariates=covariates)])[:, held]
        effects = effects_of(fit.residuals, [block for block, out in zip(blocks, held, strict=True) if not out])
        known = every * effects.factors(blocks)
        closer = replace(fit, residuals=effects.residuals).interval(known, covariates=covariates)
        met = held & np.array([block in effects.effects for block in blocks])
        corrected[:, held] = plain[:, held]
        corrected[:, met] = np.stack([known, *closer])[:, met]
    return Part(
        runs=runs,
        measured=measured,
        by_constants=_predicted(plain, measured),
        by_blocks=_predicted(corrected, measured),
        constants=fit_constants(constants, predict, measured, starts=2).values,
        folds=len(np.unique(fold)),
    )


def _predicted(columns: Floats, measured: Floats) -> Predicted:
    seconds, low, high = columns
    return Predicted(
        seconds=seconds,
        error=float(np.abs(seconds / measured - 1).mean()),
        coverage=coverage(low, high, measured),
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
