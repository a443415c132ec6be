"""The placement search: the matrix of batch sizes that answers most rows a second, as a mixed-integer program.

At saturation the instances on a device share its time without loss. With r[d, u, b] the rows a second of unit u on
device d in batches of b, z whether there is such an instance and x its share of the device's time: maximise t subject
to t <= sum_db r x for each unit, 0 <= x <= z, at most one batch size for each device and unit, sum_ub x <= 1, and the
bytes and cores of each device. On drawn cases of 4 to 12 members on 4 and 16 devices that takes 0.1 to 10 s.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.memory_model import MemoryModel
from trainwright.serve.placement.units import Unit

__all__ = ["Matrix", "PlacementProblem", "PlacementSolution"]

Matrix = tuple[tuple[int, ...], ...]
"""Batch sizes by device, then unit; 0: no instance."""

_LIMIT_SECONDS, _GAP = 10.0, 1e-4
_INSTANCE_COST = 1e-6  # of the objective, so that instances without a share are left out


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementSolution:
    """The best matrix found, its rows a second, and the rows a second that no other one exceeds."""

    matrix: Matrix
    value: float
    bound: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """A possible instance: a unit on a device with a batch size."""

    device: int
    unit: int
    batch: int
    seconds: float
    needed_bytes: int

    @property
    def rate(self) -> float:
        return self.batch / self.seconds


@dataclass(kw_only=True)
class _Constraints:
    """Rows of a sparse matrix, each with its least and most."""

    terms: list[tuple[int, int, float]] = field(default_factory=list)  # row, column, factor
    most: list[float] = field(default_factory=list)

    def add(self, row: Sequence[tuple[int, float]], most: float) -> None:
        self.terms.extend((len(self.most), column, factor) for column, factor in row)
        self.most.append(most)


@dataclass(frozen=True, kw_only=True)
class PlacementProblem:
    """Units to place on devices; `seconds` [devices, units, batches] of each batch, NaN where it cannot run.

    With `slo_seconds` a device's instances compute one batch each within half of it, so that a request waits for one
    round and is computed in the next (Nexus: Shen et al., SOSP 2019, section 4.1).
    """

    devices: tuple[Device, ...]
    units: tuple[Unit, ...]
    batches: tuple[int, ...]
    seconds: Array
    memory: MemoryModel
    slo_seconds: float = math.inf

    def solve(self) -> PlacementSolution | None:
        """Return the best matrix; None if nothing fits, or nothing was found within 10 s."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        # What cannot be there alone is left out, which makes the program smaller.
        entries = self._list_entries()
        count = len(entries)
        if {entry.unit for entry in entries} != set(range(len(self.units))):
            return None
        # Rates are scaled to at most 1, so that one tolerance fits all problems.
        scale = max(entry.rate for entry in entries)
        constraints = self._state_constraints(entries, scale)
        rows, columns, factors = zip(*constraints.terms, strict=True)
        matrix = csr_array((factors, (rows, columns)), shape=(len(constraints.most), 2 * count + 1))
        # Columns: the shares x, whether there is an instance z, and t.
        cost = np.concatenate([np.zeros(count), np.full(count, _INSTANCE_COST), [-1.0]])
        solved = milp(
            cost,
            integrality=np.repeat([0, 1, 0], [count, count, 1]),
            bounds=Bounds(np.zeros(2 * count + 1), np.append(np.ones(2 * count), np.inf)),
            constraints=LinearConstraint(matrix, -np.inf, constraints.most),
            options={"time_limit": _LIMIT_SECONDS, "mip_rel_gap": _GAP},
        )
        if solved.x is None:
            return None
        chosen = [entry for place, entry in enumerate(entries) if solved.x[count + place] > 0.5]
        table = [[0] * len(self.units) for _ in self.devices]
        for entry in self._with_best_batches(chosen, entries):
            table[entry.device][entry.unit] = entry.batch
        # Without the cost of its instances, which is at most that of all entries.
        bound = scale * (-float(solved.mip_dual_bound) + _INSTANCE_COST * count)
        return PlacementSolution(matrix=tuple(map(tuple, table)), value=scale * float(solved.x[-1]), bound=bound)

    def rate(self, matrix: Matrix) -> float:
        """Return the rows a second of a placement; 0 if a unit has no time for its batch, or misses the latency."""
        # Without the times of all other batches, only the shares of time are left to choose.
        chosen = np.array(matrix)[:, :, None] == self.batches
        solved = replace(self, seconds=np.where(chosen, self.seconds, np.nan)).solve()
        return 0.0 if solved is None else solved.value

    def _list_entries(self) -> list[_Entry]:
        """Return every instance that may be there: it fits alone, and its time is known."""
        found = []
        for device, unit, place in np.ndindex(self.seconds.shape):
            batch, seconds = self.batches[place], float(self.seconds[device, unit, place])
            needed = self.memory.needed(self.units[unit], self.devices[device], batch)
            if seconds <= self.slo_seconds / 2 and needed <= self.memory.free(self.devices[device]):
                found.append(_Entry(device=device, unit=unit, batch=batch, seconds=seconds, needed_bytes=needed))
        return found

    def _with_best_batches(self, chosen: Sequence[_Entry], entries: Sequence[_Entry]) -> list[_Entry]:
        """Return the instances with the batch of most rows a second that fits beside the others.

        The slowest unit decides the rows a second, so the program leaves any batch to units that are faster than it.
        """
        free = [self.memory.free(device) for device in self.devices]
        seconds = [self.slo_seconds / 2] * len(self.devices)
        for entry in chosen:
            free[entry.device] -= entry.needed_bytes
            seconds[entry.device] -= entry.seconds
        found = []
        for entry in chosen:
            device = entry.device
            # What is left of the device, and what this instance has.
            most_bytes, most_seconds = free[device] + entry.needed_bytes, seconds[device] + entry.seconds
            better = [
                other
                for other in entries
                if (other.device, other.unit) == (device, entry.unit)
                and other.needed_bytes <= most_bytes
                and other.seconds <= most_seconds
            ]
            best = max(better, key=lambda other: other.rate, default=entry)
            free[device], seconds[device] = most_bytes - best.needed_bytes, most_seconds - best.seconds
            found.append(best)
        return found

    def _state_constraints(self, entries: Sequence[_Entry], scale: float) -> _Constraints:
        constraints, count = _Constraints(), len(entries)
        by_device: dict[int, list[int]] = {}
        by_unit: dict[int, list[int]] = {}
        by_both: dict[tuple[int, int], list[int]] = {}
        for place, entry in enumerate(entries):
            by_device.setdefault(entry.device, []).append(place)
            by_unit.setdefault(entry.unit, []).append(place)
            by_both.setdefault((entry.device, entry.unit), []).append(place)
            # Only an instance has a share.
            constraints.add([(place, 1.0), (count + place, -1.0)], 0.0)
        for places in by_unit.values():
            # Every unit has an instance, and the slowest one says how many rows a second are answered.
            constraints.add([(count + place, -1.0) for place in places], -1.0)
            constraints.add([(2 * count, 1.0), *((place, -entries[place].rate / scale) for place in places)], 0.0)
        for places in by_both.values():
            constraints.add([(count + place, 1.0) for place in places], 1.0)
        for number, places in by_device.items():
            device = self.devices[number]
            constraints.add([(place, 1.0) for place in places], 1.0)
            free = max(1, self.memory.free(device))
            constraints.add([(count + place, entries[place].needed_bytes / free) for place in places], 1.0)
            if device.room is not None:
                constraints.add([(count + place, 1.0) for place in places], device.room)
            if self.slo_seconds < math.inf:
                half = self.slo_seconds / 2
                constraints.add([(count + place, entries[place].seconds / half) for place in places], 1.0)
        return constraints
