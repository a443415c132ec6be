"""Failover: place a unit again on other devices after all its workers have failed permanently.

Worst fit into the memory that is free, in no time; other units keep running where they are.
"""

from collections.abc import Collection
from dataclasses import replace

from trainwright.errors import AllocationError
from trainwright.serve.placement.deployment_plan import DeploymentPlan, Instance
from trainwright.serve.placement.units import MemoryModel, Unit
from trainwright.serve.placement.worst_fit import worst_fit

__all__ = ["fail_over"]


def fail_over(plan: DeploymentPlan, unit: Unit, lost: Collection[Instance], memory: MemoryModel) -> DeploymentPlan:
    """Return the plan with a unit on another device, after all its instances and perhaps others were `lost`.

    It is not put where it was lost, nor on a device that kept no instance, which may be gone. Other units stay as they
    are. Its batch is that of the plan, halved until it fits. Raises AllocationError if no device is left, or none has
    the memory.
    """
    column = plan.units.index(unit)
    # Entries of failed instances, and all of this unit, are removed.
    dead = {(one.device.name, one.unit) for one in lost}
    left = [
        [0 if one == unit or (device.name, one) in dead else batch for one, batch in zip(plan.units, row, strict=True)]
        for device, row in zip(plan.devices, plan.matrix, strict=True)
    ]
    # A device that lost all that it had may be gone as a whole.
    emptied = {device.name for device, row in zip(plan.devices, left, strict=True) if not any(row)}
    gone = {name for name, _ in dead} & emptied
    allowed = [place for place, one in enumerate(plan.devices) if one.name not in gone and (one.name, unit) not in dead]
    if not allowed:
        raise AllocationError(
            f"unit {unit.name}: no other device is left for it; its workers failed permanently on "
            f"{', '.join(one.name for one in plan.devices)}; allowed: a plan with a device more"
        )
    devices = [plan.devices[place] for place in allowed]
    free = [
        memory.free(plan.devices[place])
        - sum(memory.needed(one, plan.devices[place], size) for one, size in zip(plan.units, left[place], strict=True))
        for place in allowed
    ]
    batch = max(row[column] for row in plan.matrix)
    while True:
        try:
            rows = worst_fit(devices, [unit], memory, batch=batch, free=free, crowded=True)
            break
        except AllocationError:
            if batch == 1:
                raise
            batch //= 2
    for place, [size] in zip(allowed, rows, strict=True):
        left[place][column] = size
    # Instances that failed permanently stay in the plan: their units may still have others, or move next.
    matrix = tuple((*row[:column], now[column], *row[column + 1 :]) for row, now in zip(plan.matrix, left, strict=True))
    return replace(plan, matrix=matrix, expected={}, measured={})
