"""The query for plans, and the overheads around their steps: reading samples, saving checkpoints, device failures.

Time to solution under exponential failures: Daly, "A higher order estimate of the optimum checkpoint interval" (FGCS
2006), equation 13: M e^(R/M) (e^((tau + C)/M) - 1) W / tau for W seconds of work.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from trainwright.cluster import Cluster
from trainwright.errors import InputError, closest
from trainwright.plan.parallel.mesh import RECOMPUTE, Floats, Mesh
from trainwright.plan.parallel.precision import Optimizer, Precision, optimizer_of, precision_of
from trainwright.plan.parallel.strategies.registry import AXES
from trainwright.settings import Settings
from trainwright.validators import check, integer, number, one_of, optional

__all__ = ["ALSO", "FAMILIES", "GOALS", "Input", "PlanQuery", "Saving", "best_interval", "inflation"]

_HOUR = 3600.0
ALSO = ("ring", "ulysses", "sequence", "zero-bubble", "offload")
"""What our training does not carry out, and a search tries if it is asked to."""
GOALS = ("time", "device-hours", "time-to-solution", "memory")
FAMILIES = ("serial", "data", "zero1", "zero2", "fsdp", "hsdp", *(axis.name for axis in AXES if axis.name != "data"))
"""What a strategy's name is made of, joined by "+"."""


@dataclass(frozen=True, kw_only=True)
class Input(Settings, error=InputError, label="input"):
    """What reading costs: `bytes` and CPU seconds to `decode` a sample, over `workers` processes of a node.

    With `prefetch` it goes on beside the step before, and only what is longer than a step is waited for. `cached` says
    that later epochs read from memory: only decoding and copying are left.
    """

    bytes: Annotated[float, number(minimum=0)] = 0.0
    decode: Annotated[float, number(minimum=0)] = 0.0
    workers: Annotated[int, integer(minimum=1)] = 8
    prefetch: bool = True
    cached: bool = False


@dataclass(frozen=True, kw_only=True)
class Saving(Settings, error=InputError, label="checkpoint"):
    """What checkpoints cost: `bytes` at the storage's speed, or `seconds` that training stands still for one.

    A failed job goes on after `restart_seconds`. None for `interval_seconds` saves as often as is best, or, where no
    failures are known, once an hour; never more often than a save takes until it is safe, `persist_seconds`.
    """

    bytes: Annotated[float, number(minimum=0)] = 0.0
    seconds: Annotated[float | None, optional(number(minimum=0))] = None
    restart_seconds: Annotated[float, number(minimum=0)] = 60.0
    persist_seconds: Annotated[float, number(minimum=0)] = 0.0
    interval_seconds: Annotated[float | None, optional(number(above=0))] = None

    def blocking(self, cluster: Cluster) -> float:
        """Return the seconds of one save; raises `InputError` if the storage's speed is wanted and not known."""
        if self.seconds is not None:
            return self.seconds
        if self.bytes and not cluster.storage.write:
            raise InputError(
                f"checkpoint: cluster {cluster.name!r} has no storage.write; allowed: bytes a second in the cluster's "
                "file, or the seconds of a save in place of its bytes"
            )
        return self.bytes / cluster.storage.write if self.bytes else 0.0

    def interval(self, cluster: Cluster, mtbf_seconds: Floats) -> Floats:
        """Return the seconds between two saves."""
        if self.interval_seconds is not None:
            return np.full_like(mtbf_seconds, self.interval_seconds)
        found = best_interval(self.blocking(cluster), mtbf_seconds)
        return np.maximum(self.persist_seconds, np.where(np.isfinite(mtbf_seconds), found, _HOUR))


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
    degrees: Mapping[str, int] = field(default_factory=dict)
    """Degrees that are fixed, by axis."""
    recompute: Annotated[str | None, optional(one_of(*RECOMPUTE[:3], "offload"))] = None
    """The only recomputation that is tried; None: all that mean something for the model."""
    also: tuple[str, ...] = ()
    """Of `ALSO`: what a search tries besides."""
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
        for name in self.also:
            check(name, one_of(*ALSO), "also")
        if "offload" in {*self.also, self.recompute} and not self.cluster.device.host_bandwidth:
            raise InputError(
                f"offload: cluster {self.cluster.name!r} has no device.host_bandwidth; allowed: bytes a second there"
            )
        for name, degree in self.degrees.items():
            check(name, one_of(*(axis.name for axis in AXES)), "degrees")
            check(degree, integer(minimum=1, maximum=self.devices), f"degrees, {name}")
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
    def by_seconds(self) -> bool:
        """Whether the score is the seconds of a step themselves."""
        return self.goal == "time" and self.input is None and self.saving is None

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


def best_interval(cost: float, mtbf_seconds: Floats) -> Floats:
    """Return the tau for which time to solution is least, 0 if a save is free.

    There the derivative is zero: (1 - tau / M) e^((tau + C) / M) = 1, which Lambert's W solves.
    """
    # Loaded here, for most plans have no failures.
    from scipy.special import lambertw

    finite = np.where(np.isfinite(mtbf_seconds), mtbf_seconds, 1.0)
    tau = finite * (1 + lambertw(-np.exp(-1 - cost / finite)).real)
    return np.where(np.isfinite(mtbf_seconds), tau, np.inf)


def inflation(saving: Saving, cluster: Cluster, devices: Floats) -> tuple[Floats, Floats]:
    """Return how much longer than its work a job takes, by saves alone and by saves and failures: (n,) each.

    The mean time between failures of a job is that of a device divided by its devices.
    """
    # A job fails as soon as one of its devices does.
    mtbf = cluster.failure.device_mtbf_hours * _HOUR / devices
    cost = saving.blocking(cluster)
    tau = np.maximum(1e-9, saving.interval(cluster, mtbf))
    saves = 1 + cost / tau
    with np.errstate(over="ignore", invalid="ignore"):
        lost = mtbf * np.exp(saving.restart_seconds / mtbf) * np.expm1((tau + cost) / mtbf) / tau
    return saves, np.where(np.isfinite(mtbf), lost, saves)


def input_seconds(reading: Input, cluster: Cluster, mesh: Mesh) -> Floats:
    """Return the seconds until an iteration's samples are read, decoded and copied, beside nothing else.

    A node reads for the replicas that it holds; of a replica that spans nodes one of them reads.
    """
    # The slowest of the links that a sample passes decides.
    nodes = np.ceil(mesh.devices / cluster.devices_per_node)
    a_node = np.ceil(mesh.batch / np.minimum(nodes, mesh.replicas))
    storage, host = cluster.storage, cluster.device.host_bandwidth
    parts = [a_node * reading.decode / reading.workers]
    if not reading.cached:
        parts += [a_node * reading.bytes / storage.node_read] if storage.node_read else []
        parts += [np.full(mesh.rows, mesh.batch * reading.bytes / storage.shared_read)] if storage.shared_read else []
    parts += [a_node * reading.bytes / host] if host else []
    # The stages of reading work beside each other, so the slowest decides.
    found: Floats = np.max(np.stack(parts), axis=0)
    return found
