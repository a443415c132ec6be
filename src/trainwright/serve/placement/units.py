"""Units: the members that one instance computes, a column of the allocation matrix; their bytes and their seconds.

An instance needs weights, the peak of a batch, and a context for its process. A device holds a matrix if the sum over
its instances is at most 95 % of its capacity. The peaks of all members of a unit count, although they run in turn,
because an allocator keeps what one leaves. To say that something fits which does not is the one mistake that this must
not make.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainwright.ensemble import Ensemble, Member
from trainwright.ensemble.metrics import Array
from trainwright.errors import AllocationError
from trainwright.serve.placement.devices import Device

__all__ = ["MemberFootprint", "MemoryModel", "TimeTables", "Unit", "packed_units"]

_CONTEXT = {"cuda": 500 * 10**6, "cpu": 300 * 10**6}
"""Of a process, before the first weight: users report 500 MB to 1.4 GiB on CUDA (pytorch/serve#2128)."""
_USABLE = 0.95
_UNKNOWN_ROW_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Unit:
    """Members, by their position in the ensemble, that one process computes in turn."""

    members: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.members or min(self.members) < 0 or list(self.members) != sorted(set(self.members)):
            raise AllocationError(
                f"Unit.members: got {self.members!r}; allowed: places of members in the ensemble, ascending, each once"
            )

    @property
    def name(self) -> str:
        """The unit in a word, such as "0" or "loop(1,2)"."""
        listed = ",".join(map(str, self.members))
        return listed if len(self.members) == 1 else f"loop({listed})"


def packed_units(weights: Sequence[float], most: int | None) -> tuple[Unit, ...]:
    """Return a unit for each member, or, of more members than `most`, so many units of about equal weight.

    The heaviest first, each to the unit that has least (LPT: Graham, SIAM J. Appl. Math. 17, 1969).
    """
    count = len(weights) if most is None else min(most, len(weights))
    loads, members = [0.0] * count, [list[int]() for _ in range(count)]
    for member in sorted(range(len(weights)), key=lambda place: (-weights[place], place)):
        # Ties go to the first, so that equal weights always pack alike.
        least = min(range(count), key=lambda place: (loads[place], place))
        loads[least] += weights[member]
        members[least].append(member)
    return tuple(sorted(Unit(members=tuple(sorted(each))) for each in members if each))


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberFootprint:
    """Bytes of one member: its weights, and beside them the peak of a batch, `fixed_bytes` + rows * `row_bytes`."""

    weight_bytes: int
    row_bytes: int
    fixed_bytes: int = 0

    def peak_bytes(self, batch: int) -> int:
        """Return what a batch of so many rows takes beside the weights."""
        return self.fixed_bytes + batch * self.row_bytes

    @classmethod
    def assumed(cls, member: Member) -> "MemberFootprint":
        """Return a member's recorded weights, and what is assumed of one that was not traced: 1 MiB a row."""
        if member.weight_bytes is None:
            raise AllocationError(
                f"trial {member.trial}: its bytes are not known, so it cannot be placed; allowed: members whose "
                "training function gives its model to tw.ensemble.leave"
            )
        return cls(weight_bytes=member.weight_bytes, row_bytes=_UNKNOWN_ROW_BYTES)


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Bytes that units take and devices have; `footprints` by the member's place in the ensemble."""

    footprints: tuple[MemberFootprint, ...]
    context_bytes: Mapping[str, int] = field(default_factory=lambda: dict(_CONTEXT))  # of a process, by device kind
    usable: float = _USABLE  # share of a device's capacity

    @classmethod
    def assumed(cls, ensemble: Ensemble) -> "MemoryModel":
        """Return the model of an ensemble whose networks were not looked at."""
        return cls(footprints=tuple(map(MemberFootprint.assumed, ensemble.members)))

    def needed(self, unit: Unit, device: Device, batch: int) -> int:
        """Return the bytes of one instance of a unit; 0 for batch 0, which is none."""
        if not batch:
            return 0
        # A context is paid once a process, weights and peaks once a member.
        members = [self.footprints[member] for member in unit.members]
        return self.context_bytes[device.kind] + sum(one.weight_bytes + one.peak_bytes(batch) for one in members)

    def free(self, device: Device) -> int:
        """Return the bytes that instances may take of an empty device."""
        # The rest is for what allocators and drivers take besides.
        return int(self.usable * device.capacity_bytes)


@dataclass(frozen=True, kw_only=True, eq=False)
class TimeTables:
    """Seconds [members, batches] of one batch on each model of device; NaN where a member cannot run such a batch."""

    batches: tuple[int, ...]  # rows, ascending
    seconds: Mapping[str, Array]  # by Device.model
    source: str = "injected"  # "measured", "roofline", ...
    spread: float = 0.0  # of a batch's times, the range of the middle half over the median; median over the batches

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
