"""What instances need on a device: weights, the peak of a batch, and a context for each process.

A device holds a matrix if the sum over its instances is at most 95 % of its capacity. A unit of several members pays
one context; the peaks of all its members are counted, although they run in turn, because an allocator keeps what one
leaves. To say that something fits which does not is the one mistake that this must not make.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainwright.ensemble import Ensemble, Member
from trainwright.errors import AllocationError
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.units import Unit

__all__ = ["MemberFootprint", "MemoryModel"]

_CONTEXT = {"cuda": 500 * 10**6, "cpu": 300 * 10**6}
"""Of a process, before the first weight: users report 500 MB to 1.4 GiB on CUDA (pytorch/serve#2128)."""
_USABLE = 0.95
_UNKNOWN_ROW_BYTES = 1 << 20


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

    def to_json(self) -> dict[str, Any]:
        """Return the model as a JSON object."""
        return {**asdict(self), "footprints": [asdict(one) for one in self.footprints]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MemoryModel":
        """Return the model that `to_json` wrote."""
        return cls(**{**content, "footprints": tuple(MemberFootprint(**one) for one in content["footprints"])})

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

    def used(self, device: Device, units: Sequence[Unit], row: Sequence[int]) -> int:
        """Return the bytes of a device's instances, by their batch sizes."""
        return sum(self.needed(unit, device, batch) for unit, batch in zip(units, row, strict=True))
