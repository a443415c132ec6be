"""Time tables: seconds of a batch by member, model of device, and rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import AllocationError
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.units import Unit

__all__ = ["TimeTables"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TimeTables:
    """Seconds [members, batches] of one batch on each model of device; NaN where a member cannot run such a batch."""

    batches: tuple[int, ...]  # rows, ascending
    seconds: Mapping[str, Array]  # by Device.model
    source: str = "injected"  # "measured", "roofline", ...

    def __post_init__(self) -> None:
        if list(self.batches) != sorted(set(self.batches)) or not self.batches or self.batches[0] < 1:
            raise AllocationError(f"TimeTables.batches: got {self.batches}; allowed: numbers of rows >= 1, ascending")
        for model, table in self.seconds.items():
            if np.ndim(table) != 2 or table.shape[1] != len(self.batches) or (table <= 0).any():
                raise AllocationError(
                    f"TimeTables.seconds[{model!r}]: got shape {np.shape(table)}; allowed: positive seconds "
                    f"[members, {len(self.batches)}]"
                )

    def of_units(self, units: Sequence[Unit], devices: Sequence[Device]) -> Array:
        """Return the seconds [devices, units, batches]: of several members in turn their sum."""
        for device in devices:
            if device.model not in self.seconds:
                known = ", ".join(self.seconds) or "none"
                raise AllocationError(
                    f"time table: has no times for {device.name} ({device.model}); allowed: {known}; kinds are never "
                    "mixed"
                )
        # NaN of one member makes the sum NaN, so that the unit has no such batch.
        tables = [self.seconds[device.model] for device in devices]
        return np.array([[table[list(unit.members)].sum(axis=0) for unit in units] for table in tables])

    def least_seconds(self, devices: Sequence[Device]) -> float:
        """Return the seconds of the slowest member's fastest single batch."""
        # No answer is faster: it needs every member, each on some device.
        each = np.array([self.seconds[device.model] for device in devices])
        return float(np.nanmin(each, axis=(0, 2)).max())

    def to_json(self) -> dict[str, Any]:
        """Return the tables as a JSON object, in which None stands where there is no number."""
        return {
            "batches": list(self.batches),
            "seconds": {
                model: [[None if math.isnan(one) else float(one) for one in row] for row in table]
                for model, table in self.seconds.items()
            },
            "source": self.source,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TimeTables":
        """Return the tables that `to_json` wrote."""
        seconds = {model: np.array(table, dtype=float) for model, table in content["seconds"].items()}
        return cls(batches=tuple(content["batches"]), seconds=seconds, source=content["source"])
