"""Plan: which unit runs where, with which batch size, as a matrix of devices by units; what is expected of it."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from trainwright.ensemble import Ensemble
from trainwright.errors import AllocationError
from trainwright.files import read_json
from trainwright.publishing import write_file
from trainwright.serve.placement.devices import Device, parse_devices, room_of
from trainwright.serve.placement.integer_program import Matrix
from trainwright.serve.placement.units import Unit, packed_units
from trainwright.validators import check, integer, one_of

__all__ = ["BATCHES", "DeploymentPlan", "Instance", "Unit", "digest_of", "fail_over"]

_SCHEMA = 2
BATCHES = tuple(1 << power for power in range(10))
"""Batch sizes that a search tries: 1 to 512 rows."""
_ROWS = 32  # of a batch that nothing was measured for


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """One process: a unit on a device, with at most `batch` rows at a time and `threads` an operation."""

    unit: Unit
    device: Device
    batch: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class DeploymentPlan:
    """An ensemble placed on devices. Figures are by name; rates are rows a second, sizes bytes."""

    ensemble: str  # digest of its members, see `digest_of`
    devices: tuple[Device, ...]
    units: tuple[Unit, ...]
    matrix: Matrix
    expected: Mapping[str, float] = field(default_factory=dict)  # from time tables
    measured: Mapping[str, float] = field(default_factory=dict)  # from running it; empty if it was not
    source: str = ""  # of the times that it was found by: "measured", "roofline"; none if by size alone
    in_process: bool = False  # computed by the process that serves, without worker processes

    def __post_init__(self) -> None:
        listed = sorted(member for unit in self.units for member in unit.members)
        if listed != list(range(len(listed))):
            raise AllocationError(
                f"Plan.units: hold members {', '.join(map(str, listed))}; allowed: each of 0 to {len(listed) - 1} in "
                "exactly one unit"
            )
        shape = len(self.devices), len(self.units)
        if [len(row) for row in self.matrix] != [shape[1]] * shape[0]:
            raise AllocationError(
                f"Plan.matrix: got {self.matrix}; allowed: {shape[0]} rows (devices) of {shape[1]} batch sizes (units)"
            )
        for batch in (batch for row in self.matrix for batch in row):
            check(batch, integer(minimum=0), "Plan.matrix", AllocationError)
        for place, unit in enumerate(self.units):
            if not any(row[place] for row in self.matrix):
                raise AllocationError(
                    f"Plan.matrix: unit {unit.name} has no instance; allowed: at least one batch size in every column"
                )
        # One process computes on its own cores only, and only what is loaded here.
        first, *others = self.instances
        if self.in_process and (others or first.device.kind != "cpu"):
            raise AllocationError(
                f"Plan.in_process: got {1 + len(others)} instances, the first on {first.device.name}; allowed: one, on "
                "a group of cores"
            )

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The processes of the plan: by device, then unit. Those on one group of cores share its threads."""
        return tuple(
            Instance(unit=self.units[place], device=device, batch=row[place], threads=threads)
            for device, row in zip(self.devices, self.matrix, strict=True)
            for held in [[place for place, batch in enumerate(row) if batch]]
            for place, threads in zip(held, device.threads_of(len(held)), strict=True)
        )

    @property
    def simulated(self) -> bool:
        """Whether a device of it is simulated, so that it cannot be deployed."""
        return any(device.simulated for device in self.devices)

    @classmethod
    def simple(
        cls,
        ensemble: Ensemble,
        devices: str | Iterable[str | Device],
        *,
        batch: int | None = None,
        in_process: bool = False,
    ) -> "DeploymentPlan":
        """Return one instance of each member, on the device that has least to do by then, without any search.

        Processes on one group of cores share its threads. Where there are more members than cores, several share a
        process, which computes them in turn. With `in_process` there are no worker processes: the one that serves
        computes all members in turn. Batches have 32 rows at most, in this process 512.
        """
        found = parse_devices(devices)
        if batch is None:
            batch = BATCHES[-1] if in_process else _ROWS
        if in_process:
            unit = Unit(members=tuple(range(len(ensemble.members))))
            return cls(
                ensemble=digest_of(ensemble), devices=found[:1], units=(unit,), matrix=((batch,),), in_process=True
            )
        weights = [member.weight_bytes or 1 for member in ensemble.members]
        units = packed_units(weights, room_of(found))
        rows = [[0] * len(units) for _ in found]
        for place in range(len(units)):
            # To the device that has least to do, of those with a core left.
            held = [(sum(map(bool, row)), one) for one, row in enumerate(rows)]
            _, chosen = min((count, one) for count, one in held if count < (found[one].room or len(units)))
            rows[chosen][place] = batch
        return cls(ensemble=digest_of(ensemble), devices=found, units=units, matrix=tuple(map(tuple, rows)))

    def check(self, ensemble: Ensemble, devices: str | Iterable[str | Device] | None = None) -> None:
        """Raise AllocationError if the plan was made for another ensemble, or for other devices than those given.

        Without `devices` it is checked against those of this machine, so that a plan of simulated ones is refused.
        """
        found = digest_of(ensemble)
        if found != self.ensemble:
            raise AllocationError(
                f"plan: was made for the ensemble {self.ensemble}, this one is {found}; allowed: a plan of the same "
                "members; allocate again"
            )
        if self.simulated and devices is None:
            names = ", ".join(device.name for device in self.devices)
            raise AllocationError(f"plan: its devices are simulated ({names}); allowed: devices that are here")
        # Times hold for one model of device; of its threads a plan may have a share.
        here = parse_devices([device.name for device in self.devices] if devices is None else devices)
        known = {device.name: device for device in here}
        fits = known.keys() == {device.name for device in self.devices} and all(
            known[one.name].model == one.model and one.threads <= known[one.name].threads for one in self.devices
        )
        if not fits:
            raise AllocationError(
                f"plan: was made for the devices {_describe_devices(self.devices)}, given are "
                f"{_describe_devices(here)}; allowed: the same; allocate again"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object, with a digest of what it places where."""
        content = {one.name: getattr(self, one.name) for one in fields(self)} | {
            "devices": [device.to_json() for device in self.devices],
            "units": [list(unit.members) for unit in self.units],
            "matrix": [list(row) for row in self.matrix],
        }
        return {"schema": _SCHEMA, **content, "digest": _digest_of_json(content)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], *, where: str = "plan") -> "DeploymentPlan":
        """Return the plan that `to_json` wrote; raises AllocationError for one that was changed or is newer."""
        names = {one.name for one in fields(cls)}
        if not isinstance(content, Mapping) or not content.keys() >= {"schema", "digest", *names}:
            raise AllocationError(f"{where}: is no plan; allowed: what Plan.save or `serve allocate --out` wrote")
        check(content["schema"], one_of(_SCHEMA), f"{where}: schema", AllocationError)
        found = {name: content[name] for name in names}
        # A plan that was edited by hand might place what does not fit.
        if _digest_of_json(found) != content["digest"]:
            raise AllocationError(f"{where}: its content and its digest differ; it was changed; allocate again")
        found["devices"] = tuple(map(Device.from_json, found["devices"]))
        found["units"] = tuple(Unit(members=tuple(members)) for members in found["units"])
        found["matrix"] = tuple(map(tuple, found["matrix"]))
        return cls(**found)

    def save(self, path: str | Path) -> Path:
        """Write the plan to a JSON file, replacing an existing one; returns it."""
        target = Path(path)
        try:
            write_file(target, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise AllocationError(
                f"{path}: the plan cannot be written ({error.strerror}); give another path"
            ) from error
        return target

    @classmethod
    def load(cls, path: str | Path) -> "DeploymentPlan":
        """Read the file that `save` wrote; raises AllocationError if it cannot be read or was changed."""
        allowed = "a file that Plan.save or `trainwright serve allocate --out` wrote"
        return cls.from_json(read_json(path, "plan", allowed=allowed, error=AllocationError), where=str(path))


def digest_of(ensemble: Ensemble) -> str:
    """Return the BLAKE2b-128 of an ensemble's members in order: their trials and what they left.

    Rule and calibration play no part: another combination of the same members runs on the same plan.
    """
    content = [
        [member.trial, member.epoch, sorted(member.model_digests.items()), member.factory]
        for member in ensemble.members
    ]
    return _digest_of_json(content)


def _describe_devices(devices: tuple[Device, ...]) -> str:
    return ", ".join(
        f"{one.name} ({one.model}, {one.threads} threads)" for one in sorted(devices, key=lambda one: one.name)
    )


def _digest_of_json(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def fail_over(plan: DeploymentPlan, unit: Unit, lost: Collection[Instance]) -> DeploymentPlan:
    """Failover: return the plan with a unit on another device, after all its instances and perhaps others were `lost`.

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
