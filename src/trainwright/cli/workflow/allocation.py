"""[allocation]: which member of the exported ensemble runs on which device, with which batch size."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from trainwright.cli._serve_allocate import show_plan
from trainwright.cli.workflow.stage import EXPORT, PLACEMENT, StageOutcome, StageRun, refuse_unknown
from trainwright.ensemble import Ensemble
from trainwright.errors import InputError
from trainwright.serve import DeploymentPlan
from trainwright.serve.placement.allocate import allocate_or_pack, slo_of

__all__ = ["AllocationStage"]

_WHERE = "[allocation]"


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationStage:
    """The settings of an [allocation] table; unchanged while they and the ensemble are."""

    name: ClassVar[str] = "allocation"
    devices: str = "cpu"
    objective: str = "throughput"

    def __post_init__(self) -> None:
        if not isinstance(self.devices, str):
            raise InputError(f"{_WHERE} devices: got {self.devices!r}; allowed: a text such as 'cuda:0,cpu:0-7'")
        if not isinstance(self.objective, str):
            raise InputError(f"{_WHERE} objective: got {self.objective!r}; allowed: a text such as 'throughput@50'")
        slo_of(self.objective)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "AllocationStage":
        """Return the stage of an [allocation] table."""
        refuse_unknown(_WHERE, table, [one.name for one in fields(cls)])
        return cls(**table)

    def inputs(self, work: StageRun) -> Mapping[str, Any]:
        """Return the settings and the ensemble's manifest."""
        return {"settings": asdict(self), "ensemble": work.read(self.name, f"{EXPORT}/manifest.json", "ensemble")}

    def run(self, work: StageRun) -> StageOutcome:
        """Place the members and write the plan."""
        # What this very workflow exported, whose training function is the user's own program.
        ensemble = Ensemble.load(work.folder / EXPORT, trust=True)
        plan = allocate_or_pack(ensemble, self.devices, objective=self.objective)
        plan.save(work.folder / PLACEMENT)
        return StageOutcome(
            content={"plan": plan.to_json(), "file": str(work.folder / PLACEMENT)}, outputs=(PLACEMENT,)
        )

    def show(self, content: Mapping[str, Any]) -> None:
        """Print who runs where."""
        plan = DeploymentPlan.from_json(content["plan"])
        show_plan(plan)
        if not plan.search:
            print("placed by size alone: trials left no sample batch (tw.ensemble.leave, sample=) to time members with")
        print(f"plan:       {content['file']}")

    def summary(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return devices and matrix."""
        plan = content["plan"]
        names = [device["name"] for device in plan["devices"]]
        return {
            "allocation": {
                "devices": names,
                "matrix": plan["matrix"],
                "objective": plan["objective"],
                **{key: plan[key] for key in ("expected", "measured")},
            }
        }
