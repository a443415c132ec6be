"""The predicted cost of layouts: seconds and bytes with intervals, bottlenecks, and seconds by number of devices.

The 90 % interval comes from one error model for all plans, by what is new in the question. The logarithm of measured
over predicted seconds is taken to be normal. Its standard deviation is

- of a cluster fitted to runs: what the fit left over (`errors["runs"]`), and more for each e-fold that the devices or
  the model's parameters lie beyond those runs;
- of a cluster that `plan calibrate` measured: the errors of its parts, each by its share of the iteration;
- of a preset that nobody measured: what presets were found to err by, on public runs of machines that were left out
  and whose hosts and input kept up. The high end is that of a slow host, or of an input that nobody described.

The constants are those of `benchmarks/plan`, where the intervals' coverage and width stand.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import overload

import numpy as np

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.profile import Profile
from trainwright.plan.layout import Degrees, Layout
from trainwright.plan.parallel.strategies.strategy import Operation, Phase
from trainwright.plan.runnable import refusal_of

__all__ = [
    "SLOW_HOST_SECONDS",
    "SLOW_INPUT_SECONDS",
    "Bottleneck",
    "Breakdown",
    "Collective",
    "Forecast",
    "Ranking",
    "Rejection",
    "ScalingCurve",
    "interval_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Seconds of an iteration by what they go to; they add up to the total."""

    compute: float = 0.0
    communication: float = 0.0
    """Exposed: not hidden behind computation."""
    bubble: float = 0.0
    input: float = 0.0
    """Exposed."""
    update: float = 0.0
    """Of the weights, and adding up the gradients of micro-batches."""
    checkpoint: float = 0.0
    framework: float = 0.0
    """What takes time beyond layers and exchanges, as it was measured."""

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return math.fsum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """`count` exchanges of `bytes` bytes in an iteration, among the ranks that differ only in the degree `axis`.

    `bytes` is the whole message of one exchange (of an all-gather: what each rank ends with), not each rank's part.
    """

    operation: Operation
    axis: str
    """The degree whose ranks exchange: a field of `Degrees`."""
    bytes: int
    count: int
    phase: Phase
    layer: str = ""
    overlaps: bool = False
    """Whether computation of the same phase may hide it (gradient buckets, prefetched weights)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    """What limits a plan, in one sentence with the two numbers that prove it, and what to try."""

    id: str
    sentence: str
    share: float
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A strategy that cannot be used, and why."""

    strategy: str
    reason: str
    value: str
    allowed: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast(Layout):
    """A layout with its predicted time and memory per device; wherever a layout is wanted, it can be given."""

    optimizer: str = "adamw"
    breakdown: Breakdown = field(default_factory=Breakdown)
    interval: tuple[float, float] = (0.0, 0.0)
    """Low and high end of seconds_per_iteration, 5 to 95 %."""
    within_error_of_best: bool = False
    """Whether more than half of the interval is shared with that of the best plan."""
    peak_bytes: int = 0
    """Allocated, per device."""
    reserved_bytes: int = 0
    state_bytes: int = 0
    """Weights, gradients and optimizer state: part of the peak."""
    activation_bytes: int = 0
    """What micro-batches in flight save for their backward passes, on the stage that saves most of them."""
    inflation: float = 1.0
    """How many times as long as its iterations a job takes, with what failures lose."""
    caveat: str = ""
    """Why the figures may err by more than the interval says, in a sentence; "" if nothing is known."""
    model_refusal: str = ""
    """Why training does not set this model up so, where its profile tells; "" if nothing is known."""
    context_by: str = ""
    """How context ranks attend over the whole sequence: "ring", "ulysses", "" by gathering keys and values."""
    nodes: tuple[int, ...] = ()
    """The nodes of a cluster of different ones that are meant; () where all are equal."""
    bound_by: str = ""
    """What these have least of, and which of them: all others wait for it, or leave as much unused."""
    collectives: tuple[Collective, ...] = ()
    bottlenecks: tuple[Bottleneck, ...] = ()

    @property
    def refusal(self) -> str:
        """Why `trial.prepare(plan=...)` does not set this plan up, "" where it does as far as is known."""
        return refusal_of(self) or self.model_refusal

    @property
    def seconds_per_iteration(self) -> float:
        """Predicted seconds of an iteration."""
        return self.breakdown.total

    def device_hours(self, samples: int) -> float:
        """Return the device-hours of so many samples, those of an epoch for instance."""
        return math.ceil(samples / self.batch) * self.seconds_per_iteration * self.devices / 3600

    def seconds_to_solution(self, samples: int) -> float:
        """Return the seconds until so many samples have been trained on, with checkpoints and failures."""
        seconds = self.seconds_per_iteration - self.breakdown.checkpoint
        return math.ceil(samples / self.batch) * seconds * self.inflation

    def goal_value(self, goal: str) -> float:
        """Return what one of `GOALS` makes of the plan, as a search has it: lower is better."""
        seconds = self.seconds_per_iteration
        values = {"device-hours": seconds * self.devices, "memory": float(self.peak_bytes)}
        return self.seconds_to_solution(self.batch) if goal == "time-to-solution" else values.get(goal, seconds)


@dataclass(frozen=True, kw_only=True)
class Ranking(Sequence[Forecast]):
    """The best forecast of every strategy, best first, with the strategies that cannot be used."""

    plans: tuple[Forecast, ...]
    rejected: tuple[Rejection, ...]
    priced: int = 0
    """Candidates whose times were computed."""

    @overload
    def __getitem__(self, place: int) -> Forecast: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Forecast, ...]: ...
    def __getitem__(self, place: int | slice) -> Forecast | tuple[Forecast, ...]:
        return self.plans[place]

    def __len__(self) -> int:
        return len(self.plans)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingCurve:
    """Columns by number of devices, which rises; where nothing fits into memory the seconds are infinite."""

    devices: tuple[int, ...]
    seconds: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    strategies: tuple[str, ...] = ()
    """The best strategy at each number."""

    def __post_init__(self) -> None:
        columns = (self.seconds, self.low, self.high)
        if not self.devices or any(len(column) != len(self.devices) for column in columns):
            raise InputError("ScalingCurve: got columns of different lengths, or none; allowed: one entry a number")
        if any(a >= b for a, b in zip(self.devices, self.devices[1:], strict=False)) or self.devices[0] < 1:
            raise InputError(f"ScalingCurve.devices: got {self.devices}; allowed: rising numbers >= 1")

    def seconds_on(self, devices: float) -> float:
        """Return the seconds on so many devices: between two points straight in the logarithms of both.

        Beyond the last point nothing is gained; below the first that is feasible nothing fits.
        """
        # Points at which something fits, rising in devices.
        points = [(n, s) for n, s in zip(self.devices, self.seconds, strict=True) if math.isfinite(s)]
        if not points or devices < points[0][0]:
            return math.inf
        # Whoever has more devices may leave some idle, so that a curve never rises.
        known = [n for n, _ in points]
        least = np.minimum.accumulate([s for _, s in points])
        if devices in known:
            return float(least[known.index(int(devices))])
        return math.exp(np.interp(math.log(devices), np.log(known), np.log(least)))

    def speedups(self, *, devices: int = 1) -> Mapping[float, float]:
        """Return {factor of devices: speed-up} over `devices`: what the simulated engine's `Scaling` takes as curve."""
        start = self.seconds_on(devices)
        if not math.isfinite(start):
            raise InputError(f"ScalingCurve.speedups: got devices {devices}, on which nothing fits; give more")
        return {n / devices: start / self.seconds_on(n) for n in self.devices if n >= devices}


_PRESET_ERROR = 0.2
"""Standard deviation of the logarithm, of presets as they are."""
SLOW_HOST_SECONDS = 8e-5
"""For an operation, of the slowest host among the public runs."""
SLOW_INPUT_SECONDS = 1e-3
"""For a sample of a device: an image read and decoded by the processes that a device has for it."""
_ROUNDNESS = 6.0  # of the norm between a step and what it may wait for
_BEYOND = {"devices": 0.03, "parameters": 0.05}
"""What an e-fold beyond the runs adds."""
_QUANTILE = 1.645
_PARTS = {
    "compute": ("compute", "bubble", "update"),
    "links": ("communication",),
    "storage": ("input", "checkpoint"),
    "framework": ("framework",),
}


def interval_of(
    breakdown: Breakdown, cluster: Cluster, profile: Profile, degrees: Degrees, *, unknown_seconds: float
) -> tuple[float, float]:
    """Return the low and high end between which the seconds of an iteration lie with 90 %.

    `unknown_seconds` is what a slow host or input would take, which of a preset's machine may be so.
    """
    factor = math.exp(_QUANTILE * _log_deviation(breakdown, cluster, profile, degrees))
    total = breakdown.total
    slowest = total if cluster.verified else (total**_ROUNDNESS + unknown_seconds**_ROUNDNESS) ** (1 / _ROUNDNESS)
    return total / factor, slowest * factor


def _log_deviation(breakdown: Breakdown, cluster: Cluster, profile: Profile, degrees: Degrees) -> float:
    """Return the standard deviation of the logarithm of measured over predicted seconds."""
    if not cluster.verified:
        return _PRESET_ERROR
    if "runs" in cluster.errors:
        asked = {"devices": float(degrees.devices), "parameters": float(max(1, profile.parameters))}
        beyond = [
            slope * max(0.0, math.log(low / asked[name]), math.log(asked[name] / high))
            for name, slope in _BEYOND.items()
            for low, high in [cluster.seen.get(name, (asked[name], asked[name]))]
        ]
        return math.hypot(cluster.errors["runs"], *beyond)
    links = max((cluster.errors.get(tier.name, 0.0) for tier in cluster.tiers), default=0.0)
    errors = {**cluster.errors, "links": math.hypot(links, cluster.errors.get("overlap", 0.0))}
    # Each part errs by a factor of its own.
    total = max(breakdown.total, 1e-300)
    shares = {name: math.fsum(getattr(breakdown, part) for part in parts) / total for name, parts in _PARTS.items()}
    return math.hypot(*(share * errors.get(name, 0.0) for name, share in shares.items()))
