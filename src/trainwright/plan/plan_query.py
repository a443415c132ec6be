"""Request: what a plan is asked for, checked once."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from trainwright.cluster import Cluster
from trainwright.errors import InputError, closest
from trainwright.plan.parallel.mesh import Floats, Mesh
from trainwright.plan.parallel.precision import Optimizer, Precision, optimizer_of, precision_of
from trainwright.plan.parallel.strategies.registry import AXES
from trainwright.plan.step_overheads import Input, Saving, inflation, input_seconds
from trainwright.settings import Settings
from trainwright.validators import integer, number, one_of, optional

__all__ = ["FAMILIES", "GOALS", "PlanQuery"]

GOALS = ("time", "device-hours", "time-to-solution", "memory")
FAMILIES = ("serial", "data", "zero1", "zero2", "fsdp", "hsdp", *(axis.name for axis in AXES if axis.name != "data"))
"""What a strategy's name is made of, joined by "+"."""


@dataclass(frozen=True, kw_only=True)
class PlanQuery(Settings, error=InputError, label=""):
    """`batch` samples an iteration on at most `devices` devices of `cluster`.

    `strategies` None allows all; "data+tensor" allows these two together and alone. `micro` fixes the micro-batch.
    `max_memory_bytes` None means the device's. Raises `InputError` for values out of range and unknown names.
    """

    cluster: Cluster
    batch: Annotated[int, integer(minimum=1)]
    devices: Annotated[int, integer(minimum=1)]
    precision: str = "fp32"
    optimizer: str = "adamw"
    strategies: tuple[str, ...] | None = None
    micro: Annotated[int | None, optional(integer(minimum=1))] = None
    max_memory_bytes: Annotated[float | None, optional(number(above=0))] = None
    goal: Annotated[str, one_of(*GOALS)] = "time"
    input: Input | None = None
    saving: Saving | None = None
    allowed: frozenset[str] = field(init=False)

    def check_together(self) -> None:
        """Refuse more devices than there are, micro-batches of odd sizes and unknown names."""
        if self.devices > self.cluster.devices:
            raise InputError(
                f"devices: got {self.devices}; allowed: 1 to {self.cluster.devices}, what cluster "
                f"{self.cluster.name!r} has"
            )
        if self.micro is not None and self.batch % self.micro:
            raise InputError(
                f"micro: got {self.micro} for a batch of {self.batch}; allowed: a divisor of it, nearest "
                f"{_nearest(self.batch, self.micro)}"
            )
        precision_of(self.precision)
        optimizer_of(self.optimizer)
        names = {part for item in self.strategies or FAMILIES for part in item.split("+")}
        for name in sorted(names):
            if name not in FAMILIES:
                raise InputError(
                    f"strategies: got {name!r}; allowed: {', '.join(FAMILIES)}, several joined by +"
                    f"{closest(name, FAMILIES)}"
                )
        object.__setattr__(self, "allowed", frozenset(names))

    def overheads(self, mesh: Mesh, seconds: Floats) -> tuple[Floats, Floats, Floats]:
        """Return exposed input seconds, checkpoint seconds and the whole job's inflation, for steps of `seconds`."""
        waited, saved, factor = np.zeros(mesh.rows), np.zeros(mesh.rows), np.ones(mesh.rows)
        if self.input is not None:
            read = input_seconds(self.input, self.cluster, mesh)
            waited = np.maximum(0.0, read - seconds) if self.input.prefetch else read
        if self.saving is not None:
            saves, factor = inflation(self.saving, self.cluster, mesh.devices.astype(np.float64))
            saved = (seconds + waited) * (saves - 1)
        return waited, saved, factor

    def score(self, mesh: Mesh, seconds: Floats, size: Floats) -> Floats:
        """Return what the goal makes of steps of `seconds` and devices of `size` bytes: lower is better.

        It never falls where seconds or bytes rise, so that bounds stay bounds.
        """
        if self.goal == "memory":
            return size
        waited, saved, factor = self.overheads(mesh, seconds)
        if self.goal == "time-to-solution":
            return (seconds + waited) * factor
        total = seconds + waited + saved
        return total * mesh.devices if self.goal == "device-hours" else total

    @property
    def memory_bytes(self) -> float:
        """Bytes that a device may use, infinite if nobody said."""
        known = self.max_memory_bytes or self.cluster.device.memory_bytes
        return known or float("inf")

    @property
    def plan_precision(self) -> Precision:
        """The precision."""
        return precision_of(self.precision)

    @property
    def plan_optimizer(self) -> Optimizer:
        """The optimizer."""
        return optimizer_of(self.optimizer)


def _nearest(batch: int, wanted: int) -> str:
    divisors = [item for item in range(1, batch + 1) if batch % item == 0]
    below = max((divisor for divisor in divisors if divisor < wanted), default=None)
    above = min((entry for entry in divisors if entry > wanted), default=None)
    return " and ".join(str(one) for one in (below, above) if one is not None)
