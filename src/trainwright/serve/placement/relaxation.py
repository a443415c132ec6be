"""Placements from the linear relaxation, in which every device holds every unit: the largest shares that fit.

A basic solution of the linear program of `time_sharing` has at most as many shares as there are units and devices. So
where memory is no limit and instances do not interfere, the instances with a share are already a best placement.
"""

from collections.abc import Sequence

import numpy as np

from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.placement_space import PlacementSpace
from trainwright.serve.placement.profile_cost import ProfileCost
from trainwright.serve.placement.units import Unit

__all__ = ["place_by_relaxation", "upper_bound"]


def place_by_relaxation(units: tuple[Unit, ...], space: PlacementSpace, cost: ProfileCost) -> Placement | None:
    """Return the instances of largest share that fit, at least one of each unit; None if a unit finds no room."""
    from scipy.optimize import linprog

    seconds = cost.unit_seconds(units)
    allowed = [cost.tables.batches.index(batch) for batch in space.batches]
    rates = np.nan_to_num(np.array(space.batches) / seconds[:, :, allowed])
    # Each unit at its best batch on each device.
    best, batch = rates.max(axis=2), np.array(space.batches)[rates.argmax(axis=2)]
    devices, columns = best.shape
    scale = best.max()
    limits = np.zeros((columns + devices, devices * columns + 1))
    for device in range(devices):
        for unit in range(columns):
            limits[unit, device * columns + unit] = -best[device, unit] / scale
            limits[columns + device, device * columns + unit] = 1.0
    limits[:columns, -1] = 1.0
    goal = np.append(np.zeros(devices * columns), -1.0)
    # Shares of the devices' time that maximise the slowest unit.
    solved = linprog(goal, A_ub=limits, b_ub=np.repeat([0.0, 1.0], [columns, devices]), method="highs-ds")
    shares = solved.x[:-1].reshape(devices, columns)
    order = sorted(np.ndindex(devices, columns), key=lambda place: -shares[place] * best[place])
    matrix = [[0] * columns for _ in range(devices)]
    placed: set[int] = set()
    # First each unit's largest share, then the rest.
    for needed in (True, False):
        for device, unit in order:
            if (needed and unit in placed) or matrix[device][unit] or (not needed and shares[device, unit] <= 0):
                continue
            if _place_largest_batch(matrix, units, space, (device, unit, int(batch[device, unit]))):
                placed.add(unit)
    return Placement(units, tuple(map(tuple, matrix))) if len(placed) == columns else None


def _place_largest_batch(
    matrix: list[list[int]], units: Sequence[Unit], space: PlacementSpace, entry: tuple[int, int, int]
) -> bool:
    """Place an instance with the largest batch up to this one that fits; say whether one did."""
    device, unit, most = entry
    load = sum(space.needed(held, device, size) for held, size in zip(units, matrix[device], strict=True))
    if not space.has_core(matrix[device], device):
        return False
    for batch in sorted((size for size in space.batches if size <= most), reverse=True):
        if load + space.needed(units[unit], device, batch) <= space.free[device]:
            matrix[device][unit] = batch
            return True
    return False


def upper_bound(units: tuple[Unit, ...], space: PlacementSpace, cost: ProfileCost) -> float:
    """Return rows a second that no placement of these units exceeds: every device holds all, at its best batch sizes.

    Memory is left out, and so is what instances at once lose, but not what they gain. On one device, where time is
    shared without loss, it is 1 / sum over u of 1/r[u].
    """
    from trainwright.serve.placement.time_sharing import balance

    allowed = [cost.tables.batches.index(batch) for batch in space.batches]
    rates = np.array(space.batches) / cost.unit_seconds(units)[:, :, allowed]
    counts = range(1, len(units) + 1)
    gains = [np.max([cost.tables.sharing(device, count) for count in counts], axis=0) for device in space.devices]
    rates *= np.maximum(1.0, np.array(gains)[:, None, allowed])
    best = np.nan_to_num(rates).max(axis=2)
    return float(balance(best[None], np.ones((1, len(space.devices))))[0])
