"""Data-parallel steps: from measured seconds to those of other numbers of devices, nodes and batches.

With b = batch / p samples on each of p devices on n nodes a step takes C + max(S - hidden C, last S):

    C  computation of b samples: a constant for each b that was measured in two settings and for the least and the
       most; straight in the logarithms of both between them, the same below and in proportion above
    S  the sum of gradients, a ring: 2 (p - 1) (alpha + message / p), with an alpha and a message of the links inside a
       node and of the network between nodes; message = seconds that all gradients take over the link

Gradients are summed while the backward pass goes on, which hides of them as much as a share `hidden` of the computation
takes, but never the share `last` of the layers whose gradients come last (Li et al., VLDB 2020, section 3.2.3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from benchmarks.plan.extrapolation_error import reach_of
from benchmarks.plan.fit import Fit, FitConstant, Floats, fit_constants
from numpy.typing import ArrayLike, NDArray

from trainwright.errors import InputError
from trainwright.plan.forecast import ScalingCurve

__all__ = ["DataParallelFit", "DataParallelSteps", "fit_data_parallel"]


@dataclass(frozen=True, kw_only=True, eq=False)
class DataParallelSteps:
    """Steps in columns, one entry each: `devices`, on so many `nodes`, share `batch` samples."""

    devices: ArrayLike
    batch: ArrayLike
    nodes: ArrayLike = 1

    def __post_init__(self) -> None:
        try:
            columns = np.broadcast_arrays(*np.atleast_1d(self.devices, self.batch, self.nodes))
            devices, batch, nodes = (np.asarray(column, dtype=np.float64) for column in columns)
        except ValueError as error:
            raise InputError(f"DataParallelSteps: {error}; allowed: columns of numbers of one length") from error
        for name, column, least in (("nodes", nodes, 1.0), ("devices", devices, nodes), ("batch", batch, devices)):
            if column.ndim != 1 or not np.all(np.isfinite(column) & (column >= least)):
                raise InputError(
                    f"DataParallelSteps.{name}: got {column.tolist()!r}; "
                    "allowed: 1 <= nodes <= devices <= batch, in samples of the whole batch"
                )
            object.__setattr__(self, name, column)

    def take(self, rows: NDArray[np.bool_]) -> "DataParallelSteps":
        """Return some of the steps."""
        devices, batch, nodes = self.columns.T[:, rows]
        return DataParallelSteps(devices=devices, batch=batch, nodes=nodes)

    @property
    def columns(self) -> Floats:
        """Devices, batch and nodes of each step, one row a step."""
        return np.stack([self.devices, self.batch, self.nodes], axis=1)

    @property
    def covariates(self) -> Mapping[str, Floats]:
        """What a prediction may lie beyond: devices, nodes, samples of a device."""
        devices, batch, nodes = self.columns.T
        return {"devices": devices, "nodes": nodes, "samples": batch / devices}


@dataclass(frozen=True, kw_only=True, slots=True)
class DataParallelFit:
    """Constants of the model above, and how far they can be trusted."""

    fit: Fit
    """Its residuals are those of every measurement, repeats included."""
    samples: tuple[float, ...]
    """Samples of a device of which computation has a constant."""

    def seconds(self, steps: DataParallelSteps) -> Floats:
        """Return the predicted seconds of each step.

        Raises `InputError` for several devices on one node, or for several nodes, if none such was measured.
        """
        seconds = _seconds(self.fit.values, self.samples, steps)
        if np.isnan(seconds).any():
            devices, _, nodes = steps.columns[int(np.argmax(np.isnan(seconds)))]
            where = "one node" if nodes == 1 else "several nodes"
            raise InputError(
                f"steps: got {devices:g} devices on {nodes:g} nodes; "
                f"allowed: what was measured, which has no step of several devices on {where}; measure one"
            )
        return seconds

    def interval(self, steps: DataParallelSteps, *, level: float = 0.9) -> tuple[Floats, Floats]:
        """Return the ends between which the seconds lie with this probability, wider beyond what was measured."""
        return self.fit.interval(self.seconds(steps), level=level, covariates=steps.covariates)

    def curve(self, *, batch: int, devices: Sequence[int], per_node: int) -> ScalingCurve:
        """Return the curve of a batch over numbers of devices that fill nodes of `per_node` one after the other."""
        numbers = np.unique(devices)
        steps = DataParallelSteps(devices=numbers, batch=batch, nodes=np.ceil(numbers / per_node))
        low, high = self.interval(steps)
        return ScalingCurve(
            devices=tuple(numbers.tolist()),
            seconds=tuple(self.seconds(steps).tolist()),
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
            strategies=("data",) * len(numbers),
        )


def fit_data_parallel(steps: DataParallelSteps, measured: ArrayLike, *, starts: int = 2) -> DataParallelFit:
    """Return the constants with which steps come closest to the `measured` seconds.

    Repeats of one setting (devices, nodes, batch) count once, by their median. Raises `InputError` unless there are
    more settings than constants: one for each batch of a device that was measured in two settings and for the least
    and the most of them, two for overlap, two for links inside nodes and two for those between.
    """
    seconds = np.asarray(measured, dtype=np.float64)
    if seconds.shape != (len(steps.columns),):
        raise InputError(f"measured: got {seconds.size} seconds for {len(steps.columns)} steps; allowed: one for each")
    found = _fit(steps, seconds, starts)
    if found is None:
        settings, _, samples = _settings(steps, seconds)
        raise InputError(
            f"steps: got {len(settings.columns)} settings for {len(_constants(settings, samples, seconds))} constants; "
            "allowed: more settings than constants; measure other numbers of devices with the same samples a device"
        )

    def without(held: NDArray[np.bool_]) -> Floats:
        rest = _fit(steps.take(~held), seconds[~held], 1)
        return np.full(len(held), np.nan) if rest is None else _seconds(rest.fit.values, rest.samples, steps)

    residuals = np.log(found.seconds(steps) / seconds)
    reach = {name: reach_of(column, seconds, without) for name, column in steps.covariates.items()}
    return replace(found, fit=replace(found.fit, residuals=tuple(residuals.tolist()), reach=reach))


def _fit(steps: DataParallelSteps, seconds: Floats, starts: int) -> DataParallelFit | None:
    """Return the fit to the medians of settings; None if there are not more of them than constants."""
    settings, medians, samples = _settings(steps, seconds)
    constants = _constants(settings, samples, medians)
    if len(medians) <= len(constants):
        return None
    fit = fit_constants(constants, lambda values: _seconds(values, samples, settings), medians, starts=starts)
    return DataParallelFit(fit=fit, samples=samples)


def _settings(steps: DataParallelSteps, seconds: Floats) -> tuple[DataParallelSteps, Floats, tuple[float, ...]]:
    """Return the settings that differ, the median seconds of each, and the samples that get a constant."""
    rows, which = np.unique(steps.columns, axis=0, return_inverse=True)
    medians = np.array([np.median(seconds[which.ravel() == number]) for number in range(len(rows))])
    devices, batch, nodes = rows.T
    samples, counts = np.unique(batch / devices, return_counts=True)
    chosen = samples[(counts > 1) | (samples == samples[0]) | (samples == samples[-1])]
    return DataParallelSteps(devices=devices, batch=batch, nodes=nodes), medians, tuple(chosen.tolist())


def _constants(settings: DataParallelSteps, samples: Sequence[float], seconds: Floats) -> list[FitConstant]:
    """Return the constants that the settings can tell; computation starts at the fastest step of so many samples."""
    devices, nodes, each = settings.covariates["devices"], settings.covariates["nodes"], settings.covariates["samples"]
    typical = float(np.median(seconds))
    fastest = [float(seconds[each == number].min()) for number in samples]
    constants = [
        FitConstant(name=f"computation_{number}", start=start, low=start / 20, high=2 * start)
        for number, start in enumerate(fastest)
    ]
    for link, measured in (("node", (nodes == 1) & (devices > 1)), ("network", nodes > 1)):
        if measured.any():
            constants += [
                FitConstant(name=f"{link}_alpha", start=typical * 1e-3, low=typical * 1e-6, high=typical / 3),
                FitConstant(name=f"{link}_message", start=typical / 3, low=typical * 1e-4, high=typical * 5),
            ]
    if (devices > 1).any():
        constants += [
            FitConstant(name="hidden", start=0.4, low=0.01, high=1.0),
            FitConstant(name="last", start=0.1, low=1e-3, high=1.0),
        ]
    return constants


def _seconds(values: Mapping[str, float], samples: Sequence[float], steps: DataParallelSteps) -> Floats:
    """Return the seconds of steps; nan for several devices whose links have no constants."""
    devices, nodes, each = steps.covariates["devices"], steps.covariates["nodes"], steps.covariates["samples"]
    known = np.log([values[f"computation_{number}"] for number in range(len(samples))])
    computation = np.exp(np.interp(np.log(each), np.log(samples), known)) * np.maximum(1.0, each / samples[-1])
    alpha, message = (
        np.where(nodes == 1, values.get(f"node_{part}", np.nan), values.get(f"network_{part}", np.nan))
        for part in ("alpha", "message")
    )
    exchange = 2 * (devices - 1) * (alpha + message / devices)
    exposed = np.maximum(exchange - values.get("hidden", np.nan) * computation, values.get("last", np.nan) * exchange)
    seconds: Floats = computation + np.where(devices > 1, exposed, 0.0)
    return seconds
