"""ProfileCost: what a placement is worth by time tables, without running it.

At saturation instances share their device's time as well as can be (see `balance`); what each then does is scaled by
what so many instances at once do there, where that was measured (`TimeTables.shared`). Latencies come from simulated
arrivals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.serve.placement.cost import Measurement
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.objectives import P99, Objective, Throughput
from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.time_tables import TimeTables
from trainwright.serve.placement.units import Unit

__all__ = ["ProfileCost"]

_RESOLUTION = 0.05  # of the largest rate within a latency
_QUANTILE = 0.99
_LONG = 40.0  # batches that a simulation lasts at least


@dataclass(kw_only=True)
class ProfileCost:
    """Value of placements on `devices` from time tables; the same answer every time."""

    devices: tuple[Device, ...]
    tables: TimeTables
    objective: Objective = field(default_factory=Throughput)
    requests: int = 500  # simulated for a latency
    seed: int = 0
    _seconds: dict[tuple[Unit, ...], Array] = field(default_factory=dict, init=False, repr=False)

    noisy = False

    def __post_init__(self) -> None:
        from trainwright.serve.placement.queueing_simulation import arrival_times, latencies
        from trainwright.serve.placement.time_sharing import balance

        self._balance, self._latencies = balance, latencies
        # Of a batch among the batches, from 1.
        self._place = np.zeros(max(self.tables.batches) + 1, dtype=np.int64)
        self._place[list(self.tables.batches)] = np.arange(1, len(self.tables.batches) + 1)
        self._arrivals: Array = arrival_times(1.0, self.requests, self.seed)

    def measure(self, placements: Sequence[Placement], floor: float = -math.inf) -> list[Measurement]:
        """Return the value of each; one that cannot reach `floor` is abandoned with a bound."""
        found: list[Measurement] = []
        start = 0
        # Runs with equal units are computed together.
        while start < len(placements):
            units = placements[start].units
            stop = start
            while stop < len(placements) and placements[stop].units == units:
                stop += 1
            found += self._same_units(units, placements[start:stop], floor)
            start = stop
        return found

    def unit_seconds(self, units: tuple[Unit, ...]) -> Array:
        """Return the seconds [devices, units, batches] of these units' batches."""
        if units not in self._seconds:
            self._seconds[units] = self.tables.of_units(units, self.devices)
        return self._seconds[units]

    def rates(self, placement: Placement) -> Array:
        """Return the rows a second [devices, units] of each instance that has its device for itself."""
        return np.asarray(self._unit_rates(placement.units, np.array([placement.matrix]))[0])

    def _sharing_scale(self, limits: Array) -> Array:
        """Return by what the instances [K, D, U] of a device scale each other's rates, [K, D, U]."""
        counts = (limits > 0).sum(axis=2)
        scale = np.ones(limits.shape)
        for device, one in enumerate(self.devices):
            for count in np.unique(counts[:, device]) if one.model in self.tables.shared else ():
                mine = counts[:, device] == count
                place = np.maximum(self._place[limits[mine, device]] - 1, 0)
                scale[mine, device] = self.tables.sharing(one, int(count))[place]
        return scale

    def _same_units(self, units: tuple[Unit, ...], placements: Sequence[Placement], floor: float) -> list[Measurement]:
        # All placements of equal units are computed at once, as arrays [placements, devices, units].
        limits = np.array([placement.matrix for placement in placements])
        rates = self._unit_rates(units, limits)
        unknown = np.isnan(rates)
        scale = self._sharing_scale(limits)
        # NaN means that no time is known; such an instance gets no share and the placement fails below.
        saturated = self._balance(np.nan_to_num(rates * scale), np.ones(limits.shape[:2]))
        alone = np.nansum(rates * scale, axis=1)
        return [
            Measurement.failure("no time is known for an instance")
            if unknown[place].any()
            else Measurement(
                value=self._objective_value(units, limits[place], scale[place], float(saturated[place]), floor),
                per_unit=tuple(map(float, alone[place])),
            )
            for place in range(len(placements))
        ]

    def _unit_rates(self, units: tuple[Unit, ...], limits: Array) -> Array:
        seconds = self.unit_seconds(units)
        place = self._place[limits]
        devices, columns = np.ogrid[: len(self.devices), : len(units)]
        taken = seconds[devices, columns, np.maximum(place - 1, 0)]
        return np.asarray(np.where(place > 0, limits / taken, 0.0))

    def _objective_value(
        self, units: tuple[Unit, ...], limits: Array, scale: Array, saturated: float, floor: float
    ) -> float:
        goal = self.objective
        if isinstance(goal, Throughput) and goal.slo_ms is None:
            return saturated
        # One batch is as fast as alone at best, whatever several at once gain together.
        seconds = self.unit_seconds(units) / np.minimum(1.0, scale)[:, :, None]
        if isinstance(goal, P99):
            return -self._simulated_p99(goal.rate, goal.rows, limits, seconds)
        # Most neighbours are worse than the incumbent: one simulation at its rate rejects them.
        slo, rows = 1e-3 * goal.slo_ms if goal.slo_ms else math.inf, goal.rows
        if floor > 0 and (saturated < floor or self._simulated_p99(floor / rows, rows, limits, seconds) > slo):
            return min(0.999 * floor, saturated)
        return rows * self._largest_rate(slo, rows, limits, seconds, saturated / rows)

    def _simulated_p99(self, rate: float, rows: int, limits: Array, seconds: Array) -> float:
        batches = np.array(self.tables.batches)
        # The simulated time must be long beside a batch; where requests come too fast for that, some come together.
        place = np.maximum(self._place[limits] - 1, 0)
        slowest = np.where(limits > 0, np.take_along_axis(seconds, place[..., None], 2)[..., 0], 0.0).max()
        together = max(1, math.ceil(rate * _LONG * slowest / self.requests))
        times = self._latencies(self._arrivals * (together / rate), together * rows, limits, seconds, batches)
        return float(np.quantile(times, _QUANTILE))

    def _largest_rate(self, slo: float, rows: int, limits: Array, seconds: Array, saturated: float) -> float:
        """Return the largest rate of requests whose 99th percentile is within the limit, to 5 %, by bisection."""
        # A placement that misses the limit at a thousandth of its rate never meets it.
        low, high = 0.0, saturated
        if saturated <= 0 or self._simulated_p99(saturated * 1e-3, rows, limits, seconds) > slo:
            return 0.0
        low = saturated * 1e-3
        while high - low > _RESOLUTION * low:
            # Rates span orders of magnitude, so the bisection is geometric.
            middle = math.sqrt(low * high)
            if self._simulated_p99(middle, rows, limits, seconds) <= slo:
                low = middle
            else:
                high = middle
        return low
