"""Worst-fit decreasing: the largest unit first, each onto the device with most bytes left; without any times.

Accelerators come before processors, as they are faster. What does not fit is told as a table of bytes.
"""

from collections.abc import Sequence

from trainwright.errors import AllocationError
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.integer_program import Matrix
from trainwright.serve.placement.units import MemoryModel, Unit

__all__ = ["worst_fit"]


def worst_fit(
    devices: Sequence[Device],
    units: Sequence[Unit],
    memory: MemoryModel,
    *,
    batch: int,
    free: Sequence[int] | None = None,
    crowded: bool = False,
) -> Matrix:
    """Return a matrix with one instance of every unit, with this batch size; `free` are the bytes left on each device.

    Without `free` the devices are empty; `crowded` lets a group of cores have more instances than cores. Raises
    AllocationError with what is needed and free, and the smallest change that would fit, if a unit fits nowhere. It may
    fail where another order would fit: worst fit is a heuristic.
    """
    free = [memory.free(device) for device in devices] if free is None else list(free)
    rows = [[0] * len(units) for _ in devices]
    left = [len(units) if crowded or device.room is None else device.room for device in devices]
    largest = [max(memory.needed(unit, device, batch) for device in devices) for unit in units]
    # Largest first, because small units fit into what is left and large ones do not.
    for place in sorted(range(len(units)), key=lambda place: (-largest[place], place)):
        needed = [memory.needed(units[place], device, batch) for device in devices]
        fitting = [one for one in range(len(devices)) if needed[one] <= free[one] and left[one] > 0]
        if not fitting:
            raise _too_large(devices, units[place], memory, batch=batch, free=free)
        # Accelerators before processors; of these the one with most free bytes.
        chosen = min(fitting, key=lambda one: (devices[one].kind != "cuda", -free[one], one))
        free[chosen] -= needed[chosen]
        left[chosen] -= 1
        rows[chosen][place] = batch
    return tuple(map(tuple, rows))


def _too_large(
    devices: Sequence[Device], unit: Unit, memory: MemoryModel, *, batch: int, free: list[int]
) -> AllocationError:
    needed = [memory.needed(unit, device, batch) for device in devices]
    lacking = [need - left for need, left in zip(needed, free, strict=True)]
    nearest = min(range(len(devices)), key=lambda place: lacking[place])
    table = "; ".join(
        f"{device.name}: needed {need}, free {left} of {device.capacity_bytes}"
        for device, need, left in zip(devices, needed, free, strict=True)
    )
    return AllocationError(
        f"unit {unit.name} with batches of {batch} rows fits no device (bytes: {table}); allowed: devices that hold "
        f"every member; {lacking[nearest]} bytes more on {devices[nearest].name} would do, or a device more, or an "
        "ensemble with fewer members"
    )
