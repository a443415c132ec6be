"""Time tables: seconds of a batch by member, model of device, and rows; and of units, where they were measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import AllocationError
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.units import Unit

__all__ = ["TimeTables"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TimeTables:
    """Seconds [members, batches] of one batch on each model of device; NaN where a member cannot run such a batch.

    `shared` tells by Device.model what 1, 2, ... instances at once on a device do over what one does alone: 1 where
    they share its time without loss, less where they slow each other; of more instances the last is taken.

    `spread` and `spread_fused` tell of each time, as a part of it, how far off it may be; `spread_shared` by
    Device.model of what is shared. Times that were not measured have none.

    A `loop` takes the sum of its members. Other fused units are known only where they were measured: whether they are
    faster is never assumed.
    """

    batches: tuple[int, ...]  # rows, ascending
    seconds: Mapping[str, Array]  # by Device.model
    fused: Mapping[tuple[Unit, str], Array] = field(default_factory=dict)  # [batches] by unit and Device.model
    shared: Mapping[str, Array] = field(default_factory=dict)  # [instances, batches], see `sharing`
    spread: Mapping[str, Array] = field(default_factory=dict)  # as `seconds`
    spread_fused: Mapping[tuple[Unit, str], Array] = field(default_factory=dict)  # as `fused`
    spread_shared: Mapping[str, float] = field(default_factory=dict)
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
        for model, table in self.shared.items():
            if np.ndim(table) != 2 or table.shape[1] != len(self.batches) or not (table > 0).all():
                raise AllocationError(
                    f"TimeTables.shared[{model!r}]: got shape {np.shape(table)}; allowed: numbers above 0 "
                    f"[instances, {len(self.batches)}]"
                )

    def of_unit(self, unit: Unit, device: Device) -> Array:
        """Return the seconds [batches] of a unit on a device; NaN where they are not known."""
        if device.model not in self.seconds:
            known = ", ".join(self.seconds) or "none"
            raise AllocationError(
                f"time table: has no times for {device.name} ({device.model}); allowed: {known}; kinds are never mixed"
            )
        if (unit, device.model) in self.fused:
            return self.fused[unit, device.model]
        table = self.seconds[device.model]
        if unit.kind in {"process", "loop"}:
            return np.asarray(table[list(unit.members)].sum(axis=0))
        return np.full(len(self.batches), math.nan)

    def of_units(self, units: Sequence[Unit], devices: Sequence[Device]) -> Array:
        """Return the seconds [devices, units, batches]."""
        return np.array([[self.of_unit(unit, device) for unit in units] for device in devices])

    def sharing(self, device: Device, instances: int) -> Array:
        """Return what so many instances at once do over what one does alone [batches]; 1 where that is not known."""
        known = self.shared.get(device.model)
        if known is None or not instances:
            return np.ones(len(self.batches))
        return np.asarray(known[min(instances, len(known)) - 1])

    def fusable(self) -> tuple[Unit, ...]:
        """Return the fused units that were measured somewhere."""
        return tuple(sorted({unit for unit, _ in self.fused}))

    def least_seconds(self, devices: Sequence[Device]) -> float:
        """Return the least latency of any answer: the slowest member's fastest single batch."""
        each = np.array([self.seconds[device.model] for device in devices])
        return float(np.nanmin(each, axis=(0, 2)).max())

    def at(self, end: int) -> "TimeTables":
        """Return the tables at an end of what may be: 1, where all takes longest, or -1, where it takes least."""
        one = np.ones(1)

        def moved(table: Array, spread: Array) -> Array:
            return np.asarray(table * (one + spread if end > 0 else one / (one + spread)))

        none = np.zeros(1)
        return replace(
            self,
            seconds={model: moved(table, self.spread.get(model, none)) for model, table in self.seconds.items()},
            fused={key: moved(table, self.spread_fused.get(key, none)) for key, table in self.fused.items()},
            shared={  # one instance is as fast as it is
                model: np.where(
                    np.arange(len(table))[:, None] == 0,
                    table,
                    table * (1 + self.spread_shared.get(model, 0.0)) ** -end,
                )
                for model, table in self.shared.items()
            },
            spread={},
            spread_fused={},
            spread_shared={},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the tables as a JSON object."""
        return {
            "batches": list(self.batches),
            "seconds": {model: _to_lists(table) for model, table in self.seconds.items()},
            "fused": [
                {
                    "unit": unit.to_json(),
                    "model": model,
                    "seconds": _to_lists(table),
                    "spread": _to_lists(self.spread_fused.get((unit, model), np.zeros(len(table)))),
                }
                for (unit, model), table in self.fused.items()
            ],
            "shared": {model: table.tolist() for model, table in self.shared.items()},
            "spread": {model: _to_lists(table) for model, table in self.spread.items()},
            "spread_shared": dict(self.spread_shared),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "TimeTables":
        """Return the tables that `to_json` wrote."""
        fused = {(Unit.from_json(one["unit"]), one["model"]): one for one in told["fused"]}
        return cls(
            batches=tuple(told["batches"]),
            seconds={model: np.array(table, dtype=float) for model, table in told["seconds"].items()},
            fused={key: np.array(one["seconds"], dtype=float) for key, one in fused.items()},
            shared={model: np.array(table) for model, table in told["shared"].items()},
            spread={model: np.array(table, dtype=float) for model, table in told["spread"].items()},
            spread_fused={key: np.array(one["spread"], dtype=float) for key, one in fused.items()},
            spread_shared=dict(told["spread_shared"]),
            source=told["source"],
        )


def _to_lists(table: Array) -> Any:
    """Return a table as lists in which None stands where there is no number."""
    return [_to_lists(row) if np.ndim(row) else None if math.isnan(row) else float(row) for row in table]
