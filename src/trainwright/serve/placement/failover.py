"""Failover: place a unit again on other devices after all its workers have failed permanently.

Reruns the placement search for this unit alone, starting from worst fit in the free memory; other units keep running
where they are. Without time tables the worst-fit placement is used as it is.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from trainwright.errors import AllocationError
from trainwright.serve.placement.deployment_plan import DeploymentPlan, Instance
from trainwright.serve.placement.greedy import BoundedGreedy
from trainwright.serve.placement.memory_model import MemoryModel
from trainwright.serve.placement.objectives import objective_of
from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.placement_space import PlacementSpace
from trainwright.serve.placement.profile_cost import ProfileCost
from trainwright.serve.placement.units import Unit
from trainwright.serve.placement.worst_fit import worst_fit

__all__ = ["fail_over"]


def fail_over(plan: DeploymentPlan, unit: Unit, lost: Collection[Instance], memory: MemoryModel) -> DeploymentPlan:
    """Return the plan with a unit on other devices, after all its instances and perhaps others were `lost`.

    It is not put where it was lost, nor on a device that kept no instance, which may be gone. Other units stay as they
    are. Raises AllocationError if no device is left, none has the memory, or nothing meets the plan's latency.
    """
    column = plan.units.index(unit)
    # Entries of failed instances, and all of this unit, are removed.
    dead = {(one.device.name, one.unit) for one in lost}
    entries = [
        [
            0 if (device.name, held) in dead or held == unit else batch
            for held, batch in zip(plan.units, row, strict=True)
        ]
        for device, row in zip(plan.devices, plan.matrix, strict=True)
    ]
    emptied = {device.name for device, row in zip(plan.devices, entries, strict=True) if not any(row)}
    gone = {name for name, _ in dead} & emptied
    allowed = [place for place, one in enumerate(plan.devices) if one.name not in gone and (one.name, unit) not in dead]
    if not allowed:
        raise AllocationError(
            f"unit {unit.name}: no other device is left for it; its workers failed permanently on "
            f"{', '.join(one.name for one in plan.devices)}; allowed: a plan with a device more"
        )
    # Columns of other units that have failed do not count any more.
    living = [place for place in range(len(plan.units)) if place == column or any(row[place] for row in entries)]
    units = tuple(plan.units[place] for place in living)
    bare = Placement(units, tuple(tuple(row[place] for place in living) for row in entries))
    where = units.index(unit)
    # Only this unit's entries on the allowed devices may change.
    every = itertools.product(range(len(plan.devices)), range(len(units)))
    space = PlacementSpace(
        devices=plan.devices,
        batches=() if plan.tables is None else plan.tables.batches,
        memory=memory,
        moves=("batch", "place", "move"),
        fixed=frozenset(set(every) - {(place, where) for place in allowed}),
        crowded=True,  # better on cores that others use than nowhere
    )
    start = _fit_unit(bare, where, space, allowed, most=max(row[column] for row in plan.matrix))
    if plan.tables is None:
        return _with_column(plan, column, start, where)
    cost = ProfileCost(devices=plan.devices, tables=plan.tables, objective=objective_of(plan.objective))
    found = BoundedGreedy(kicks=0).search(start, space, cost)
    if found.value == 0.0:
        raise AllocationError(
            f"unit {unit.name}: no device that is left lets it answer as the plan asks ({plan.objective}); allowed: a "
            "plan with a device more, or with a longer latency"
        )
    return replace(_with_column(plan, column, found.placement, where), expected={"value": found.value})


def _fit_unit(bare: Placement, where: int, space: PlacementSpace, allowed: Sequence[int], *, most: int) -> Placement:
    """Return worst fit of the unit into what is left of the memory, with the largest batch up to `most` that fits."""
    loads = space.loads(bare)
    free = [space.free[place] - loads[place] for place in allowed]
    found, batch = [space.devices[place] for place in allowed], most
    while True:
        try:
            rows = worst_fit(found, [bare.units[where]], space.memory, batch=batch, free=free)
        except AllocationError:
            if batch == 1:
                raise
            batch //= 2
        else:
            return bare.with_entries(*((place, where, row[0]) for place, row in zip(allowed, rows, strict=True)))


def _with_column(plan: DeploymentPlan, column: int, placement: Placement, where: int) -> DeploymentPlan:
    rows = tuple(
        (*row[:column], found[where], *row[column + 1 :])
        for row, found in zip(plan.matrix, placement.matrix, strict=True)
    )
    return replace(plan, matrix=rows, expected={}, measured={})
