"""[plan]: before the search, whether its configurations fit into memory, how a trial scales, and what it will cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from trainwright.cli._plan_inputs import cluster_of
from trainwright.cli.formatting import size
from trainwright.cli.workflow.stage import StageOutcome, StageRun, read_source, read_text_of, refuse_unknown
from trainwright.engine.function_reference import load_function
from trainwright.errors import InputError, TrainwrightError
from trainwright.plan import Oracle
from trainwright.plan.memory.budget import read_size
from trainwright.report.formatting import duration
from trainwright.schedule import Scheduler
from trainwright.study.forecast.search_plan import plan_search

__all__ = ["PlanStage"]

_WHERE = "[plan]"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStage:
    """The settings of a [plan] table; unchanged while they, the space, the schedule and the profile's code are."""

    name: ClassVar[str] = "plan"
    profile: str  # "module:function" of params, which returns a profile and a batch
    samples: int  # of an epoch
    cluster: str = "laptop"
    nodes: int | None = None
    devices: int = 1  # of a new trial
    seeds: int = 5  # simulated studies
    configurations: int = 16  # judged by their memory
    precision: str = "fp32"
    optimizer: str = "adamw"
    max_memory: str | int | None = None  # of a device
    max_device_hours: float | None = None  # more is not begun

    def __post_init__(self) -> None:
        for name in ("samples", "nodes", "devices", "seeds", "configurations"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | None) or (value is not None and value < 1):
                raise InputError(f"{_WHERE} {name}: got {value!r}; allowed: a whole number >= 1")
        limit = self.max_device_hours
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0):
            raise InputError(f"{_WHERE} max_device_hours: got {limit!r}; allowed: a number > 0")
        if self.max_memory is not None:
            self._memory_limit()
        for name in ("profile", "cluster", "precision", "optimizer"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"{_WHERE} {name}: got {getattr(self, name)!r}; allowed: a text")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "PlanStage":
        """Return the stage of a [plan] table."""
        refuse_unknown(_WHERE, table, [one.name for one in fields(cls)])
        for name in ("profile", "samples"):
            if name not in table:
                raise InputError(
                    f"{_WHERE}: {name!r} is missing; give profile = 'module:function', a function of params that "
                    "returns a profile and a batch, and samples, those of an epoch"
                )
        return cls(**table)

    def inputs(self, work: StageRun) -> Mapping[str, Any]:
        """Return the settings, what they speak of, and the digest of the file that holds the profile's function."""
        tables = {name: work.job.tables.get(name) for name in ("space", "searcher", "rule", "policy")}
        return {
            **tables,
            "settings": asdict(self),
            "trials": work.budget.get("trials"),
            "code": read_source(self.profile, f"{_WHERE} profile"),
            "cluster": read_text_of(self.cluster) if Path(self.cluster).suffix else self.cluster,
        }

    def run(self, work: StageRun) -> StageOutcome:
        """Judge, scale and simulate; refuse a search that cannot start or would cost more than allowed."""
        trials = work.budget.get("trials")
        if not isinstance(trials, int):
            raise InputError(f"{_WHERE} needs a number of trials to forecast; give [study] trials")
        machine = cluster_of(self.cluster, self.nodes, force_units=False)
        found = plan_search(
            Oracle(machine),
            load_function(self.profile, f"{_WHERE} profile"),
            space=work.job.space,
            scheduler=Scheduler.of(work.job.scheduler),
            searcher=work.job.searcher,
            trials=trials,
            samples=self.samples,
            devices=self.devices,
            seeds=self.seeds,
            configurations=self.configurations,
            precision=self.precision,
            optimizer=self.optimizer,
            max_memory_bytes=None if self.max_memory is None else self._memory_limit(),
        )
        if found.cost is None:
            raise TrainwrightError(
                f"plan: none of {len(found.looked)} configurations fits; the largest {found.largest.verdict.sentence}; "
                "give more memory, or a smaller space"
            )
        if self.max_device_hours is not None and found.cost.device_hours > self.max_device_hours:
            raise TrainwrightError(
                f"plan: {trials} trials are forecast to take {found.cost.device_hours:.3g} device-hours, more than "
                f"max_device_hours = {self.max_device_hours:g}; give fewer trials, or raise it"
            )
        state = "calibrated" if machine.verified else "uncalibrated"
        cluster = {"name": machine.name, "devices": machine.devices, "state": state}
        return StageOutcome(content={**found.to_json(), "cluster": cluster, "trials": trials})

    def show(self, content: Mapping[str, Any]) -> None:
        """Print verdicts, scaling and forecast, a line each."""
        states, cluster, cost = content["configurations"], content["cluster"], content["cost"]
        largest = content["largest"]
        print(f"cluster:    {cluster['name']}, {cluster['devices']} devices, {cluster['state']}")
        print(
            f"memory:     of {sum(states.values())} configurations {states['fits']} fit, {states['repaired']} after a "
            f"repair, {states['rejected']} do not; the largest wants {size(largest['bytes'])} of "
            f"{size(largest['allowed_bytes'])}"
        )
        curve = content["scaling"]
        base = next(seconds for seconds in curve["seconds"] if seconds is not None)
        points = [
            f"{devices} {'device' if devices == 1 else 'devices'} {seconds:.3g} s ({base / seconds:.2g} x)"
            for devices, seconds in zip(curve["devices"], curve["seconds"], strict=True)
            if seconds is not None
        ]
        print(f"scaling:    an iteration on {', on '.join(points)}")
        print(
            f"forecast:   {content['trials']} trials take {cost['device_hours']:.3g} device-hours (nine of ten studies "
            f"below {cost['device_hours_90']:.3g}), {duration(cost['wall_seconds'])} of wall time"
        )

    def summary(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the forecast."""
        return {"plan": {"configurations": content["configurations"], "cost": content["cost"]}}

    def _memory_limit(self) -> int:
        return read_size(self.max_memory, f"{_WHERE} max_memory")
