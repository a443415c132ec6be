"""Step times of data-parallel training on four kinds of machines, numbers of devices predicted from other numbers.

The traces of Sia (SOSP 2023; those of AWS are Pollux', OSDI 2021): cifar10 and imagenet on nodes of 4 T4 (`aws`), two
DGX, nodes of 8 RTX and one node of 4 Quadro cards, by samples a device and by how devices are placed on nodes. Traces
that were extended by a model (`-dgx-ext`, `-azure`) are left out, rows that stand in two files count once. Each number
of devices is left out in turn, and the smaller half of the numbers predicts the larger. Beside it the throughput model
of Pollux (arXiv 2008.12260), fitted to the same rows by the same search, with p devices on one node or on several:

    T = (Tg^gamma + Ts^gamma)^(1 / gamma), Tg = a + b samples, Ts = 0 if p = 1, else a' + b' (p - 2)
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.plan.coverage import Coverage, coverage
from benchmarks.plan.fit import FitConstant, fit_constants
from benchmarks.plan.fit_data_parallel import DataParallelSteps, fit_data_parallel
from numpy.typing import NDArray

__all__ = ["MACHINES", "MODELS", "Trace", "evaluate", "read", "traces"]

Floats = NDArray[np.float64]

MODELS = ("cifar10", "imagenet")
MACHINES = ("aws", "dgx", "quad", "rtx")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """How well numbers of devices of one model on one kind of machine are predicted from others."""

    rows: int
    error: float
    """Mean relative error of every row by the fit without its number of devices."""
    error_more: float
    """Of the rows of the larger half of the numbers by the fit on the smaller."""
    pollux: float
    pollux_more: float
    coverage: Coverage
    """By the 90 % intervals of the fits without a row's number of devices."""
    coverage_more: Coverage
    constants: Mapping[str, float]
    """Of a fit on all rows."""


def evaluate(steps: DataParallelSteps, measured: Floats) -> Trace:
    """Predict every number of devices from the others, and the larger half from the smaller."""
    devices = steps.covariates["devices"]
    numbers = np.unique(devices)
    more = devices > numbers[(len(numbers) - 1) // 2]
    predicted, low, high, plain = np.zeros((4, len(measured)))
    for number in numbers:
        held = devices == number
        predicted[held], low[held], high[held] = _ours(steps, measured, held)
        plain[held] = _pollux(steps, measured, held)
    larger, larger_low, larger_high = _ours(steps, measured, more)
    return Trace(
        rows=len(measured),
        error=_error(predicted, measured),
        error_more=_error(larger, measured[more]),
        pollux=_error(plain, measured),
        pollux_more=_error(_pollux(steps, measured, more), measured[more]),
        coverage=coverage(low, high, measured),
        coverage_more=coverage(larger_low, larger_high, measured[more]),
        constants=fit_data_parallel(steps, measured).fit.values,
    )


def traces(folder: Path) -> list[tuple[str, str]]:
    """Return the (model, machine) whose placements the folder has."""
    return [(model, kind) for model in MODELS for kind in MACHINES if _placements(folder, model, kind).exists()]


def read(folder: Path, model: str, machine: str) -> tuple[DataParallelSteps, Floats]:
    """Return the steps of both files of a model and machine, each row once, and their seconds."""
    rows: dict[tuple[float, ...], None] = {}
    with _placements(folder, model, machine).open() as file:
        for row in csv.DictReader(file):
            placed = [int(digit) for digit in row["placement"]]
            rows[len(placed), sum(placed), float(row["local_bsz"]), float(row["step_time"])] = None
    with (folder / model / f"scalability-{machine}.csv").open() as file:
        for row in csv.DictReader(file):
            rows[tuple(float(row[name]) for name in ("num_nodes", "num_replicas", "local_bsz", "step_time"))] = None
    nodes, devices, samples, seconds = np.array(list(rows)).T
    return DataParallelSteps(devices=devices, batch=samples * devices, nodes=nodes), seconds


def _placements(folder: Path, model: str, machine: str) -> Path:
    return folder / model / f"placements-{machine}.csv"


def _ours(steps: DataParallelSteps, measured: Floats, held: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Return the seconds predicted of the rows held out, and the ends of their 90 % interval."""
    fit = fit_data_parallel(steps.take(~held), measured[~held])
    wanted = steps.take(held)
    return fit.seconds(wanted), *fit.interval(wanted)


def _pollux(steps: DataParallelSteps, measured: Floats, held: NDArray[np.bool_]) -> Floats:
    typical = float(np.median(measured))
    each = typical / float(np.median(steps.covariates["samples"]))
    constants = (
        FitConstant(name="a", start=typical / 3, low=typical * 1e-3, high=typical * 2),
        FitConstant(name="b", start=each / 2, low=each * 1e-3, high=each * 5),
        FitConstant(name="node_a", start=typical / 5, low=typical * 1e-6, high=typical * 3),
        FitConstant(name="node_b", start=typical / 100, low=typical * 1e-7, high=typical),
        FitConstant(name="network_a", start=typical / 2, low=typical * 1e-6, high=typical * 5),
        FitConstant(name="network_b", start=typical / 100, low=typical * 1e-7, high=typical),
        FitConstant(name="gamma", start=2.0, low=1.0, high=10.0),
    )
    predict = _pollux_seconds(steps.take(~held))
    fit = fit_constants(constants, predict, measured[~held], starts=2)
    return _pollux_seconds(steps.take(held))(fit.values)


def _pollux_seconds(steps: DataParallelSteps) -> Callable[[Mapping[str, float]], Floats]:
    devices, nodes, samples = (steps.covariates[name] for name in ("devices", "nodes", "samples"))

    def seconds(values: Mapping[str, float]) -> Floats:
        computation = values["a"] + values["b"] * samples
        exchange = np.where(
            nodes == 1,
            values["node_a"] + values["node_b"] * np.maximum(devices - 2, 0.0),
            values["network_a"] + values["network_b"] * np.maximum(devices - 2, 0.0),
        )
        both = computation ** values["gamma"] + np.where(devices > 1, exchange, 0.0) ** values["gamma"]
        found: Floats = both ** (1 / values["gamma"])
        return found

    return seconds


def _error(predicted: Floats, measured: Floats) -> float:
    return float(np.abs(predicted / measured - 1).mean())
