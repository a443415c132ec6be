"""Fits the oracle's cost model to measured training steps: the constants of a cluster with the highest posterior.

Every constant has a range and a prior (a normal distribution of its logarithm around what the cluster's file says), so
that a few runs are enough: what they do not tell stays where it was. Residuals are log(predicted / measured), so that
an error of 10 % counts the same for a second and for an hour; the loss is quadratic up to a tolerance and linear
beyond, so that one bad run pulls no more than any other (soft L1; Huber 1964).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast

import numpy as np

from trainwright.cluster import Cluster
from trainwright.cluster.device import MOST_EFFICIENT
from trainwright.cluster.placement import equal_parts
from trainwright.errors import InputError
from trainwright.plan.fit.measured_run import MeasuredRun, RunPredictor
from trainwright.plan.parallel.mesh import Floats

__all__ = ["CostConstant", "FittedConstant", "RunFit", "constants_of", "fit_clusters", "fit_runs", "with_constants"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostConstant:
    """One constant: `start` is what is believed before any run, `spread` the standard deviation of its logarithm."""

    name: str
    place: tuple[str | int, ...]
    """Fields, keys and places in lists that lead to it from the cluster."""
    start: float
    low: float
    high: float
    spread: float


_EFFICIENCIES = {"linear": 0.25, "attention": 0.5, "conv": 0.4, "fp8": 0.25, "memory": 0.35, "loss": 0.7}
"""Kinds of layer, and "memory" for the bandwidth: shares of the device's peak, with the spread of their logarithm."""
_REACHED = 0.7  # of a link's bandwidth, where nobody has measured it
_SECONDS = (
    ("seconds an operation on the host", ("device", "host_seconds"), 3e-5, 1e-7, 1e-3, 0.6),
    ("flops of a half-efficient product", ("device", "product_flops"), 3e9, 1e6, 1e12, 0.5),
    ("seconds an exchange on the host", ("exchange_seconds",), 5e-5, 1e-7, 1e-2, 1.0),
    ("overhead seconds", ("overhead_seconds",), 5e-3, 1e-6, 10.0, 1.5),
    ("overlap", ("overlap",), 0.5, 1e-2, 1.0, 1.0),
)
"""Name, place, usual value, range and spread of the other constants of a device and a cluster."""


def constants_of(cluster: Cluster) -> list[CostConstant]:
    """Return the constants of a cluster; each starts at what the cluster says, or else at a usual value."""
    device = cluster.device
    table: list[tuple[str, tuple[str | int, ...], float, float, float, float]] = []
    for kind, spread in _EFFICIENCIES.items():
        place = ("device", "efficiency", kind)
        table.append((f"efficiency {kind}", place, device.reached(kind), 0.02, MOST_EFFICIENT.get(kind, 1.0), spread))
    for name, path, usual, low, high, spread in _SECONDS:
        known: float = reduce(getattr, path, cast("Any", cluster))
        # What nobody has measured starts at a usual value: an overlap of 1 is only what a data sheet would say.
        if not known or (name == "overlap" and known == 1):
            known = usual
            if path[-1] == "product_flops":
                # What fills a device grows with its speed; the usual value is that of an A100.
                known *= max(device.flops.get("fp16", 0.0), 50e12) / 312e12
        table.append((name, path, known, low, high, spread))
    for number, level in enumerate(cluster.tiers):
        reached = level.reached if level.reached < 1 else _REACHED
        table.append((f"bandwidth {level.name}", ("tiers", number, "reached"), reached, 0.02, 1.0, 0.5))
        table.append((f"latency {level.name}", ("tiers", number, "alpha"), level.alpha or 1e-5, 1e-7, 1e-2, 0.3))
    return [
        CostConstant(name=name, place=place, start=min(max(start, low), high), low=low, high=high, spread=spread)
        for name, place, start, low, high, spread in table
    ]


def with_constants(cluster: Cluster, constants: Iterable[CostConstant], values: Mapping[str, float]) -> Cluster:
    """Return the cluster with these values of some of its constants."""
    for constant in constants:
        if constant.name in values:
            cluster = _replace_at(cluster, constant.place, values[constant.name])
    return cluster


def _replace_at(record: Any, place: tuple[str | int, ...], value: float) -> Any:
    """Return a record, mapping or tuple with another value at a place inside it."""
    if not place:
        return value
    first, rest = place[0], place[1:]
    if isinstance(record, Mapping):
        return {**record, first: _replace_at(record.get(first), rest, value)}
    if isinstance(record, tuple):
        return tuple(_replace_at(each, rest, value) if i == first else each for i, each in enumerate(record))
    return replace(record, **{str(first): _replace_at(getattr(record, str(first)), rest, value)})


_TOLERANCE = 0.07  # relative error up to which errors count by their square
_STEP = 0.01  # of the logarithm of a constant, for its slope
_INFLUENCE = 1e-4  # relative change of some prediction if a constant changes by a tenth
_MOST_LONGER = 10.0  # times that most runs may take of their predictions; by more they are in another unit
_LEAST_ERROR = 0.1  # that other runs were found to err by, however well those of the fit agree
_IDENTIFIED = 0.5  # of the prior's spread, that is left of a constant which the runs determine


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedConstant:
    """What the runs say of one constant: its value, by what factor it may be off (68 %), and what that rests on."""

    value: float
    start: float
    factor: float
    state: str
    """"identified", "at its bound" or "not identified": the runs would be predicted as well with other values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFit:
    """A fitted cluster, its constants, and what the fit leaves over of each run: log(predicted / measured)."""

    cluster: Cluster
    constants: Mapping[str, FittedConstant]
    residuals: tuple[float, ...]

    @property
    def at_bounds(self) -> tuple[str, ...]:
        """Names of the constants that ended at an end of their range."""
        return tuple(name for name, each in self.constants.items() if each.state == "at its bound")


def fit_runs(cluster: Cluster, runs: Sequence[MeasuredRun]) -> RunFit:
    """Return the constants for which the cost model comes closest to the runs' seconds.

    Raises `InputError` without runs, for seconds that are not above 0 or in another unit, and for nodes that differ.
    """
    if equal_parts(cluster):
        raise InputError(
            f"fit: the nodes of {cluster.name!r} differ; allowed: equal nodes; fit each kind of node alone"
        )
    [fit] = fit_clusters([(cluster, runs)])
    longer = math.exp(-float(np.median(fit.residuals)))
    if longer > _MOST_LONGER:
        raise InputError(
            f"runs: got seconds that are {longer:.0f} times what {cluster.name!r} takes by the slowest constants; "
            "allowed: seconds of one iteration, not milliseconds, and that iteration's batch, devices and precision"
        )
    return fit


def fit_clusters(sources: Sequence[tuple[Cluster, Sequence[MeasuredRun]]]) -> list[RunFit]:
    """Return the fits of several clusters by one factor for each constant's name: what presets are calibrated by."""
    from scipy.optimize import least_squares

    seconds = np.array([run.seconds for _, runs in sources for run in runs], dtype=np.float64)
    if not len(seconds) or not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise InputError(f"runs: got seconds {seconds.tolist()!r}; allowed: one or more runs, each above 0 seconds")
    machines = [_Machine(cluster, runs) for cluster, runs in sources]
    names = _find_influential(machines)
    first = {name: next(each.constants[name] for each in machines if name in each.constants) for name in names}
    spread = np.array([first[name].spread for name in names])
    # Logarithms of the factors by which constants change; they stay within the range of each cluster.
    low = np.array([max(each.room(name)[0] for each in machines) for name in names])
    high = np.array([min(each.room(name)[1] for each in machines) for name in names])

    def errors(place: Floats) -> Floats:
        factors = dict(zip(names, np.exp(place).tolist(), strict=True))
        logs: Floats = np.log(np.concatenate([each.seconds(factors) for each in machines]) / seconds)
        return logs

    def residuals(place: Floats) -> Floats:
        # The prior's part has a standard deviation of one, that of the runs the tolerance.
        left = errors(place)
        robust = np.sqrt(2 * (np.sqrt(1 + np.square(left / _TOLERANCE)) - 1)) * np.sign(left)
        return np.concatenate([robust, place / spread])

    def slopes(place: Floats) -> Floats:
        # Steps of a fixed size: costs have kinks, which smaller ones fall into.
        base = residuals(place)
        steps = np.where(place + _STEP < high, _STEP, -_STEP)
        moved = [residuals(place + step * unit) for step, unit in zip(steps, np.eye(len(place)), strict=True)]
        return np.stack([(each - base) / step for each, step in zip(moved, steps, strict=True)], axis=1)

    inside = np.clip(np.zeros(len(names)), low + 1e-6, high - 1e-6)
    best = least_squares(
        residuals, inside, jac=slopes, bounds=(low, high), x_scale=spread, ftol=1e-3, xtol=1e-3, max_nfev=25
    )
    left = errors(best.x)
    # The curvature at the best point says how far each constant may move.
    jacobian = best.jac[: len(seconds)] * _TOLERANCE
    noise = max(0.01, math.sqrt(float(np.square(left).mean())))
    deviation = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian / noise**2 + np.diag(1 / spread**2))))
    # What the fit leaves over, with the degrees of freedom that its constants took.
    taken = float(np.sum(1 - np.square(deviation / spread).clip(0, 1)))
    error = math.sqrt(float(np.square(left).sum()) / max(1.0, len(seconds) - min(taken, 0.7 * len(seconds))))
    factors = dict(zip(names, np.exp(best.x).tolist(), strict=True))
    states = {
        name: _describe_state(best.x[place], low[place], high[place], deviation[place] / spread[place])
        for place, name in enumerate(names)
    }
    found, start = [], 0
    for machine in machines:
        constants = {
            name: FittedConstant(
                value=machine.constants[name].start * factors[name],
                start=machine.constants[name].start,
                factor=float(np.exp(deviation[place])),
                state=states[name],
            )
            for place, name in enumerate(names)
            if name in machine.constants
        }
        cluster = _note_fit(machine.changed(factors), machine.runs, max(_LEAST_ERROR, error))
        some = left[start : start + len(machine.runs)]
        start += len(machine.runs)
        found.append(RunFit(cluster=cluster, constants=constants, residuals=tuple(some.tolist())))
    return found


class _Machine:
    """One cluster with its runs and its constants."""

    def __init__(self, cluster: Cluster, runs: Sequence[MeasuredRun]) -> None:
        self.cluster, self.runs = cluster, tuple(runs)
        self.constants = {each.name: each for each in constants_of(cluster)}
        self.predictor = RunPredictor(runs)

    def changed(self, factors: Mapping[str, float]) -> Cluster:
        """Return the cluster with its constants changed by these factors."""
        values = {name: self.constants[name].start * each for name, each in factors.items() if name in self.constants}
        return with_constants(self.cluster, self.constants.values(), values)

    def seconds(self, factors: Mapping[str, float]) -> Floats:
        """Return what is predicted of each run."""
        return self.predictor.seconds(self.changed(factors))

    def room(self, name: str) -> tuple[float, float]:
        """Return the logarithms of the least and the largest factor of a constant, infinite where there is none."""
        constant = self.constants.get(name)
        if constant is None:
            return -math.inf, math.inf
        return math.log(constant.low / constant.start), math.log(constant.high / constant.start)


def _find_influential(machines: Sequence[_Machine]) -> list[str]:
    """Return the names of the constants that change some prediction."""
    names = dict.fromkeys(name for machine in machines for name in machine.constants)
    neutral = dict.fromkeys(names, 1.0)
    before = [machine.seconds(neutral) for machine in machines]

    def matters(name: str) -> bool:
        changed = [machine.seconds({**neutral, name: 0.9}) for machine in machines if name in machine.constants]
        known = [each for machine, each in zip(machines, before, strict=True) if name in machine.constants]
        return any((np.abs(other / each - 1) > _INFLUENCE).any() for other, each in zip(changed, known, strict=True))

    return [name for name in names if matters(name)]


def _note_fit(cluster: Cluster, runs: Sequence[MeasuredRun], error: float) -> Cluster:
    """Return the cluster with what its file says of the fit: its error, and what the runs covered."""
    return replace(
        cluster,
        verified=True,
        errors={**cluster.errors, "runs": error},
        seen={
            "devices": _range_of([float(run.layout.devices) for run in runs]),
            "parameters": _range_of([float(max(1, run.profile.parameters)) for run in runs]),
        },
        conditions={**cluster.conditions, "fitted": f"to {len(runs)} measured training steps"},
    )


def _range_of(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def _describe_state(place: float, low: float, high: float, left: float) -> str:
    if min(place - low, high - place) < 1e-3 * (high - low):
        return "at its bound"
    return "identified" if left < _IDENTIFIED else "not identified"
