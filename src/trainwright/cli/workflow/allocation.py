"""[allocation]: which member of the exported ensemble runs on which device, with which batch size."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

from trainwright.cli.formatting import print_table
from trainwright.cli.workflow.stage import EXPORT, PLACEMENT, StageOutcome, StudyJob
from trainwright.ensemble import Ensemble
from trainwright.serve import DeploymentPlan
from trainwright.serve.placement.allocate import allocate_or_pack
from trainwright.settings import Settings
from trainwright.validators import text

__all__ = ["AllocationStage", "show_plan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationStage(Settings, label=""):
    """Place the exported ensemble on devices; unchanged while the settings and the ensemble are."""

    name: ClassVar[str] = "allocation"
    devices: Annotated[str, text("a text such as 'cuda:0,cpu:0-7'"), "such as cuda:0,cpu:0-7"] = "cpu"

    def inputs(self, job: StudyJob) -> Mapping[str, Any]:
        """Return the settings and the ensemble's manifest."""
        return {"settings": asdict(self), "ensemble": job.read(self.name, f"{EXPORT}/manifest.json", "ensemble")}

    def run(self, job: StudyJob) -> StageOutcome:
        """Place the members and write the plan."""
        # What this very workflow exported, whose training function is the user's own program.
        ensemble = Ensemble.load(job.folder / EXPORT)
        plan = allocate_or_pack(ensemble, self.devices)
        plan.save(job.folder / PLACEMENT)
        content = plan.to_json()
        summary = {name: content[name] for name in ("matrix", "expected", "measured")}
        summary["devices"] = [device["name"] for device in content["devices"]]
        return StageOutcome(
            content={"plan": content, "file": str(job.folder / PLACEMENT), "summary": {"allocation": summary}},
            outputs=(PLACEMENT,),
        )

    def show(self, content: Mapping[str, Any]) -> None:
        """Print who runs where."""
        plan = DeploymentPlan.from_json(content["plan"])
        show_plan(plan)
        if not plan.source:
            print("placed by size alone: trials left no sample batch (tw.ensemble.leave, sample=) to time members with")
        print(f"plan:       {content['file']}")


def show_plan(plan: DeploymentPlan) -> None:
    """Print who runs where, units by devices that have an instance, and what it is worth if that is known."""
    # Devices without an instance are counted below the table.
    used = [place for place, row in enumerate(plan.matrix) if any(row)]
    simulated = " (simulated devices)" if plan.simulated else ""
    print(f"rows of a batch, by unit and device{simulated}; - is no instance\n")
    print_table(
        ("unit", *(plan.devices[place].name for place in used)),
        [(unit.name, *(plan.matrix[place][column] or "-" for place in used)) for column, unit in enumerate(plan.units)],
    )
    if idle := len(plan.devices) - len(used):
        print(f"{idle} of {len(plan.devices)} devices have nothing to do")
    if plan.in_process:
        print("computed by the serving process: its batches take less time than handing them to workers")
    if plan.expected or plan.measured:
        _show_worth(plan)


def _show_worth(plan: DeploymentPlan) -> None:
    print("\nthroughput, in rows a second:\n")
    lines = (
        ("without worker processes", "in_process"),
        ("this plan", "value"),
        ("bound", "bound"),
    )
    rows = [
        (label, _show_figure(plan.expected.get(key)), _show_figure(plan.measured.get(key)))
        for label, key in lines
        if key in plan.expected or key in plan.measured
    ]
    times = f" ({plan.source})" if plan.source else ""
    print_table(("", f"expected{times}", "measured"), rows)
    if "spread" in plan.expected:
        value, spread = plan.expected["value"], plan.expected["spread"]
        print(
            f"times of equal batches varied by {spread:.0%}: between {_show_figure(value / (1 + spread / 2))} and "
            f"{_show_figure(value * (1 + spread / 2))} rows a second are to be expected"
        )


def _show_figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
