"""Failover: place a unit again on another device after all its workers have failed permanently."""

from collections.abc import Collection
from dataclasses import replace

from trainwright.errors import AllocationError
from trainwright.serve.placement.deployment_plan import DeploymentPlan, Instance
from trainwright.serve.placement.units import Unit

__all__ = ["fail_over"]


def fail_over(plan: DeploymentPlan, unit: Unit, lost: Collection[Instance]) -> DeploymentPlan:
    """Return the plan with a unit on another device, after all its instances and perhaps others were `lost`.

    It goes, with its batch, to the device that has least to do, accelerators first. It is not put where it was lost,
    nor on a device that kept no instance, which may be gone; other units stay as they are. Whether its bytes fit there
    shows when it starts. Raises AllocationError if no device is left.
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
    chosen = min(allowed, key=lambda place: (plan.devices[place].kind != "cuda", sum(map(bool, left[place])), place))
    # Instances that failed permanently stay in the plan: their units may still have others, or move next.
    batch = max(row[column] for row in plan.matrix)
    matrix = tuple(
        (*row[:column], batch if place == chosen else 0, *row[column + 1 :]) for place, row in enumerate(plan.matrix)
    )
    return replace(plan, matrix=matrix, expected={}, measured={})
