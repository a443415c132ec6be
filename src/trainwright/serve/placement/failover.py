"""Failover: place a unit again on other devices after all its workers have failed permanently.

Solves the placement problem for this unit alone; other units keep running where they are. Without time tables, or
where a plan's latency needs none, worst fit into the free memory is used.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from trainwright.errors import AllocationError
from trainwright.serve.placement.deployment_plan import DeploymentPlan, Instance
from trainwright.serve.placement.integer_program import Matrix, PlacementProblem
from trainwright.serve.placement.memory_model import MemoryModel
from trainwright.serve.placement.units import Unit
from trainwright.serve.placement.worst_fit import worst_fit

__all__ = ["fail_over"]


def fail_over(plan: DeploymentPlan, unit: Unit, lost: Collection[Instance], memory: MemoryModel) -> DeploymentPlan:
    """Return the plan with a unit on other devices, after all its instances and perhaps others were `lost`.

    It is not put where it was lost, nor on a device that kept no instance, which may be gone. Other units stay as they
    are. Raises AllocationError if no device is left, none has the memory, or nothing meets the plan's latency.
    """
    # Entries of failed instances, and all of this unit, are removed.
    dead = {(one.device.name, one.unit) for one in lost}
    left = tuple(
        tuple(
            0 if (device.name, one) in dead or one == unit else batch
            for one, batch in zip(plan.units, row, strict=True)
        )
        for device, row in zip(plan.devices, plan.matrix, strict=True)
    )
    # A device that lost all that it had may be gone as a whole.
    emptied = {device.name for device, row in zip(plan.devices, left, strict=True) if not any(row)}
    gone = {name for name, _ in dead} & emptied
    allowed = [place for place, one in enumerate(plan.devices) if one.name not in gone and (one.name, unit) not in dead]
    if not allowed:
        raise AllocationError(
            f"unit {unit.name}: no other device is left for it; its workers failed permanently on "
            f"{', '.join(one.name for one in plan.devices)}; allowed: a plan with a device more"
        )
    column = plan.units.index(unit)
    # Refuses, with the bytes that lack, if it fits nowhere.
    packed = _pack_unit(plan, left, column, allowed, memory)
    if plan.tables is None:
        return _with_column(plan, column, packed)
    # Columns of other units that have failed do not count any more.
    living = [place for place in range(len(plan.units)) if place == column or any(row[place] for row in left)]
    units = tuple(plan.units[place] for place in living)
    problem = PlacementProblem(
        devices=plan.devices,
        units=units,
        batches=plan.tables.batches,
        seconds=plan.tables.of_units(units, plan.devices),
        memory=memory,
        slo_seconds=plan.slo_seconds,
        crowded=True,  # better on cores that others use than nowhere
    )
    # Only this unit's entries on the allowed devices may change.
    where = living.index(column)
    every = {(device, place) for device in range(len(plan.devices)) for place in range(len(units))}
    solution = problem.solve(
        keep=tuple(tuple(row[place] for place in living) for row in left),
        closed=every - {(device, where) for device in allowed},
    )
    if solution is None:
        raise AllocationError(
            f"unit {unit.name}: no device that is left lets it answer as the plan asks ({plan.objective}); allowed: a "
            "plan with a device more, or with a longer latency"
        )
    found = _with_column(plan, column, [row[where] for row in solution.matrix])
    return replace(found, expected={"value": solution.value})


def _pack_unit(
    plan: DeploymentPlan, left: Matrix, column: int, allowed: Sequence[int], memory: MemoryModel
) -> list[int]:
    """Return worst fit of the unit into what is left of the memory, with the largest batch of the plan that fits."""
    devices = [plan.devices[place] for place in allowed]
    free = [
        memory.free(plan.devices[place])
        - sum(
            memory.needed(one, plan.devices[place], batch) for one, batch in zip(plan.units, left[place], strict=True)
        )
        for place in allowed
    ]
    batch = max(row[column] for row in plan.matrix)
    while True:
        try:
            rows = worst_fit(devices, [plan.units[column]], memory, batch=batch, free=free, crowded=True)
        except AllocationError:
            if batch == 1:
                raise
            batch //= 2
        else:
            sizes = dict(zip(allowed, (row[0] for row in rows), strict=True))
            return [sizes.get(place, 0) for place in range(len(plan.devices))]


def _with_column(plan: DeploymentPlan, column: int, sizes: Sequence[int]) -> DeploymentPlan:
    """Return the plan with these batch sizes of a unit, by device."""
    rows = tuple((*row[:column], size, *row[column + 1 :]) for row, size in zip(plan.matrix, sizes, strict=True))
    return replace(plan, matrix=rows, expected={}, measured={})
