"""[plan]: before the search, checks whether configurations fit into memory, how a trial scales, and the cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from trainwright.cli.command import size
from trainwright.cli.inputs import OracleSettings, find_cluster
from trainwright.cli.workflow.stage import StageOutcome, StudyJob, read_source, read_text_of
from trainwright.engine.function_reference import load_function
from trainwright.errors import InputError, TrainwrightError
from trainwright.plan import Oracle
from trainwright.report.formatting import duration
from trainwright.schedule import Scheduler
from trainwright.study.forecast.search_plan import plan_search
from trainwright.validators import integer, number, optional, text

__all__ = ["PlanStage"]

_WHERE = "[plan]"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStage(OracleSettings):
    """Forecast the search; unchanged while the settings, the space, the schedule and the profile's code are."""

    name: ClassVar[str] = "plan"
    profile: Annotated[str, text("a text"), "module:function of params that returns a profile and a batch"]
    samples: Annotated[int, integer(minimum=1), "samples of an epoch"]
    devices: Annotated[int, integer(minimum=1), "devices of a new trial"] = 1
    seeds: Annotated[int, integer(minimum=1), "how many studies to simulate"] = 5
    configurations: Annotated[int, integer(minimum=1), "configurations whose memory is judged"] = 16
    max_device_hours: Annotated[float | None, optional(number(above=0)), "refuse a search with a higher forecast"] = (
        None
    )

    def inputs(self, job: StudyJob) -> Mapping[str, Any]:
        """Return the settings, what they speak of, and the digest of the file that holds the profile's function."""
        # Any of these tables changes what the simulated studies do.
        tables = {name: job.tables.get(name) for name in ("space", "searcher", "rule", "policy")}
        return {
            **tables,
            "settings": asdict(self),
            "trials": job.budget.get("trials"),
            "code": read_source(self.profile, f"{_WHERE} profile"),
            "cluster": read_text_of(self.cluster) if Path(self.cluster).suffix else self.cluster,
        }

    def run(self, job: StudyJob) -> StageOutcome:
        """Judge, scale and simulate; refuse a search that cannot start or would cost more than allowed."""
        trials = job.budget.get("trials")
        if not isinstance(trials, int):
            raise InputError(f"{_WHERE} needs a number of trials to forecast; give [study] trials")
        machine = find_cluster(self.cluster, self.nodes)
        found = plan_search(
            Oracle(machine),
            load_function(self.profile, f"{_WHERE} profile"),
            space=job.space,
            scheduler=Scheduler.of(job.scheduler),
            searcher=job.searcher,
            trials=trials,
            samples=self.samples,
            devices=self.devices,
            seeds=self.seeds,
            configurations=self.configurations,
            precision=self.precision,
            optimizer=self.optimizer,
            max_memory_bytes=self.max_memory_bytes(),
        )
        if self.max_device_hours is not None and found.cost.device_hours > self.max_device_hours:
            raise TrainwrightError(
                f"plan: {trials} trials are forecast to take {found.cost.device_hours:.3g} device-hours, more than "
                f"max_device_hours = {self.max_device_hours:g}; give fewer trials, or raise it"
            )
        state = "calibrated" if machine.verified else "uncalibrated"
        cluster = {"name": machine.name, "devices": machine.devices, "state": state}
        content = found.to_json()
        summary = {"plan": {name: content[name] for name in ("configurations", "cost")}}
        return StageOutcome(content={**content, "cluster": cluster, "trials": trials, "summary": summary})

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
        # Speed-ups are over the fewest devices on which the model fits.
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
