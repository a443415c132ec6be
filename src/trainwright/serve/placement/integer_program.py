"""Searches the placement: the matrix of batch sizes of highest throughput, as a mixed-integer program (MILP).

At saturation the instances on a device share its time without loss. With r[d, u, b] the rows a second of unit u on
device d in batches of b, z whether there is such an instance and x its share of the device's time: maximise t subject
to t <= sum_db r x for each unit, 0 <= x <= z, at most one batch size for each device and unit, sum_ub x <= 1, and the
bytes and cores of each device. On drawn cases of 4 to 12 members on 4 and 16 devices that takes 0.1 to 10 s.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.units import MemoryModel, Unit

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


@dataclass(frozen=True, kw_only=True)
class PlacementProblem:
    """Units to place on devices; `seconds` [devices, units, batches] of each batch, NaN where it cannot run."""

    devices: tuple[Device, ...]
    units: tuple[Unit, ...]
    batches: tuple[int, ...]
    seconds: Array
    memory: MemoryModel

    def solve(self) -> PlacementSolution | None:
        """Return the best matrix; None if nothing fits, or nothing was found within 10 s."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        rates = np.array(self.batches) / self.seconds
        memory, batches = self.memory, self.batches
        needed = np.array([[[memory.needed(u, d, b) for b in batches] for u in self.units] for d in self.devices])
        free = np.array([self.memory.free(device) for device in self.devices])
        # What cannot be there alone is left out, which makes the program smaller.
        possible = ~np.isnan(rates) & (needed <= free[:, None, None])
        entries = np.argwhere(possible)
        count = len(entries)
        if set(entries[:, 1]) != set(range(len(self.units))):
            return None
        # Rates are scaled to at most 1, so that one tolerance fits all problems.
        scale = rates[possible].max()
        shares = needed[possible] / np.maximum(1, free)[entries[:, 0]]
        matrix, most = self._state_constraints(entries, rates[possible] / scale, shares)
        # Columns: the shares x, whether there is an instance z, and t.
        cost = np.concatenate([np.zeros(count), np.full(count, _INSTANCE_COST), [-1.0]])
        solved = milp(
            cost,
            integrality=np.repeat([0, 1, 0], [count, count, 1]),
            bounds=Bounds(np.zeros(2 * count + 1), np.append(np.ones(2 * count), np.inf)),
            constraints=LinearConstraint(matrix, -np.inf, most),
            options={"time_limit": _LIMIT_SECONDS, "mip_rel_gap": _GAP},
        )
        if solved.x is None:
            return None
        table = np.zeros((len(self.devices), len(self.units)), dtype=int)
        for device, unit, place in entries[solved.x[count:-1] > 0.5]:
            table[device, unit] = place + 1
            free[device] -= needed[device, unit, place]
        # The slowest unit decides the rows a second, so the program leaves any batch to units that are faster than it:
        # each gets the batch of most rows a second that fits beside the others.
        for device, unit in np.argwhere(table):
            left = free[device] + needed[device, unit, table[device, unit] - 1]
            best = np.where(possible[device, unit] & (needed[device, unit] <= left), rates[device, unit], -1).argmax()
            free[device], table[device, unit] = left - needed[device, unit, best], best + 1
        sizes = np.array([0, *self.batches])
        # Without the cost of its instances, which is at most that of all entries.
        bound = scale * (-float(solved.mip_dual_bound) + _INSTANCE_COST * count)
        return PlacementSolution(
            matrix=tuple(map(tuple, sizes[table].tolist())), value=float(scale * solved.x[-1]), bound=float(bound)
        )

    def _state_constraints(self, entries: Array, rates: Array, shares: Array) -> tuple[Any, Array]:
        """Return a sparse matrix over the columns x, z and t, and the most of each row; `shares` are of the bytes."""
        from scipy.sparse import block_array, csr_array, diags_array, eye_array

        count = len(entries)
        ones, every = np.ones(count), np.arange(count)
        devices, units, pairs = (
            csr_array((ones, (rows, every)))
            for rows in (entries[:, 0], entries[:, 1], entries[:, 0] * len(self.units) + entries[:, 1])
        )
        rooms = [(place, device.room) for place, device in enumerate(self.devices) if device.room is not None]
        limited = [place for place, _ in rooms if place < devices.shape[0]]
        blocks = [
            # Only an instance has a share, and every unit has an instance.
            ([eye_array(count), -eye_array(count), None], np.zeros(count)),
            ([None, -units, None], -np.ones(len(self.units))),
            # The slowest unit says how many rows a second are answered.
            ([-units @ diags_array(rates), None, np.ones((len(self.units), 1))], np.zeros(len(self.units))),
            ([None, pairs, None], np.ones(pairs.shape[0])),
            # A device's time, its bytes, and its cores.
            ([devices, None, None], np.ones(devices.shape[0])),
            ([None, devices @ diags_array(shares), None], np.ones(devices.shape[0])),
        ]
        if limited:
            blocks.append(([None, devices[limited], None], np.array([room for _, room in rooms][: len(limited)])))
        return block_array([row for row, _ in blocks], format="csr"), np.concatenate([most for _, most in blocks])
