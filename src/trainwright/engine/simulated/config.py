"""Simulated: a cluster that exists only in time, on which schedulers run as they do on real ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.cluster import Cluster
from trainwright.engine.simulated.scaling import Scaling
from trainwright.engine.simulated.task import Parametric, Task
from trainwright.errors import EngineError

__all__ = ["Simulated"]


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What `study.simulate` simulates: trials of `task` on `cluster`.

    The seconds of the task are those on `task_devices` devices (None: on those of a new trial, the fewest of all
    schedulers that are compared); on others `scaling` says how fast a trial is.
    A new trial trains after `start_seconds`; `restart_seconds` is the cost of going on elsewhere (one number, or by the
    number of devices). `stragglers` s makes each run of a trial 1 + |z| times as long, z normal with spread s;
    `drops_per_second` is the rate at which it fails. Nodes fail after `node_mtbf_seconds` on average (None: never) and
    are back `repair_seconds` later; what ran there goes on from its last epoch, with the devices of a new trial. Unless
    trials `resume`, whoever goes on trains again from the first epoch. One decision takes `decision_seconds` of the one
    driver (one number, or by the number of results known: the next smaller entry counts). Every draw is a function of
    the seed, the trial and its run.
    """

    cluster: Cluster
    task: Task = field(default_factory=Parametric)
    task_devices: int | None = None
    scaling: Scaling = field(default_factory=Scaling)
    start_seconds: float = 0.0
    restart_seconds: float | Mapping[int, float] = 30.0
    resume: bool = True
    stragglers: float = 0.0
    drops_per_second: float = 0.0
    node_mtbf_seconds: float | None = None
    repair_seconds: float = 3600.0
    decision_seconds: float | Mapping[int, float] = 0.0

    def __post_init__(self) -> None:
        costs = {"restart_seconds": self.restart_seconds, "decision_seconds": self.decision_seconds}
        numbers: list[tuple[str, float]] = [
            ("start_seconds", self.start_seconds),
            ("stragglers", self.stragglers),
            ("drops_per_second", self.drops_per_second),
            ("repair_seconds", self.repair_seconds),
        ]
        for name, cost in costs.items():
            numbers += [(name, value) for value in (cost.values() if isinstance(cost, Mapping) else [cost])]
        for name, value in numbers:
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise EngineError(f"Simulated.{name}: got {value!r}; allowed: a number >= 0")
        devices = self.task_devices
        if devices is not None and (isinstance(devices, bool) or not isinstance(devices, int) or devices < 1):
            raise EngineError(f"Simulated.task_devices: got {devices!r}; allowed: a whole number >= 1, or None")
        if self.node_mtbf_seconds is not None and not self.node_mtbf_seconds > 0:
            raise EngineError(
                f"Simulated.node_mtbf_seconds: got {self.node_mtbf_seconds!r}; allowed: a number > 0, or None for never"
            )

    def restart(self, devices: int) -> float:
        """Return the seconds until a trial trains again, on so many devices."""
        return _of(self.restart_seconds, devices)

    def decision(self, results: int) -> float:
        """Return the seconds of a decision when so many results are known."""
        return _of(self.decision_seconds, results)


def _of(cost: float | Mapping[int, float], at: int) -> float:
    if not isinstance(cost, Mapping):
        return cost
    return next((cost[key] for key in sorted(cost, reverse=True) if key <= at), cost[min(cost)])
