"""[allocation]: which member of the exported ensemble runs on which device, with which batch size."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from trainwright.cli.formatting import print_table
from trainwright.cli.workflow.stage import EXPORT, PLACEMENT, StageOutcome, StageRun
from trainwright.ensemble import Ensemble
from trainwright.serve import DeploymentPlan
from trainwright.serve.placement.allocate import placed
from trainwright.serve.placement.objectives import objective_of
from trainwright.settings import Settings
from trainwright.validators import integer, one_of, text

__all__ = ["AllocationSettings", "AllocationStage", "show_plan"]

Cost = Literal["profile", "real"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationSettings(Settings, label=""):
    """How members are placed on devices."""

    devices: Annotated[str, text("a text such as 'cuda:0,cpu:0-7'"), "such as cuda:0,cpu:0-7"] = "cpu"
    objective: Annotated[str, text("a text such as 'throughput@50'"), "throughput, throughput@SLO_MS or p99@RATE"] = (
        "throughput"
    )
    cost: Annotated[Cost, one_of("profile", "real"), "profile, or real: run placements too"] = "profile"
    seed: Annotated[int, integer(), "of the search"] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationStage(AllocationSettings):
    """Place the exported ensemble; unchanged while the settings and the ensemble are."""

    name: ClassVar[str] = "allocation"

    def inputs(self, work: StageRun) -> Mapping[str, Any]:
        """Return the settings and the ensemble's manifest."""
        return {"settings": asdict(self), "ensemble": work.read(self.name, f"{EXPORT}/manifest.json", "ensemble")}

    def run(self, work: StageRun) -> StageOutcome:
        """Place the members and write the plan."""
        # What this very workflow exported, whose training function is the user's own program.
        ensemble, goal = Ensemble.load(work.folder / EXPORT, trust=True), objective_of(self.objective)
        plan = placed(ensemble, self.devices, objective=goal, cost=self.cost, seed=self.seed)
        plan.save(work.folder / PLACEMENT)
        return StageOutcome(
            content={"plan": plan.to_json(), "file": str(work.folder / PLACEMENT)}, outputs=(PLACEMENT,)
        )

    def show(self, content: Mapping[str, Any]) -> None:
        """Print who runs where."""
        plan = DeploymentPlan.from_json(content["plan"])
        show_plan(plan)
        if not plan.expected:
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


def show_plan(plan: DeploymentPlan) -> None:
    """Print who runs where, units by devices that have an instance, and what it is worth if that is known."""
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
    if plan.expected:
        _show_worth(plan)


def _show_worth(plan: DeploymentPlan) -> None:
    latency = plan.objective.startswith("p99")
    print(f"\n{plan.objective}, in {'ms' if latency else 'rows a second'}:\n")
    simpler = (("worst fit", "worst_fit"), ("batch sizes tuned", "batch_only"))
    lines = (*simpler, ("without worker processes", "in_process"), ("this plan", "value"), ("bound", "bound"))
    rows = [
        (label, _show_figure(plan.expected.get(key), latency), _show_figure(plan.measured.get(key), latency))
        for label, key in lines
        if key in plan.expected or key in plan.measured
    ]
    print_table(("", f"expected ({plan.search['times'] or plan.search['cost']})", "measured"), rows)
    if "low" in plan.expected:
        low, high = (_show_figure(plan.expected[end], latency) for end in ("low", "high"))
        print(f"expected between {low} and {high}, as far as the times are known")
    for what, content in (("expected", plan.expected), ("measured", plan.measured)):
        if "value" in content and not latency:
            gains = [
                f"{content['value'] / content[key]:.2f} x {label}" for label, key in simpler if content.get(key, 0) > 0
            ]
            print(f"{what} gain: {', '.join(gains)}")
    if "bound" in plan.expected:
        gap = 1 - plan.expected["value"] / plan.expected["bound"]
        print(f"gap to the bound (no placement exceeds it, with memory to spare): {gap:.1%}")
    search = plan.search
    print(f"{search['tried']} placements tried, {search['steps']} steps, ended: {search['stopped']}")


def _show_figure(value: float | None, latency: bool) -> str:
    if value is None:
        return "-"
    return f"{-1e3 * value:.2f}" if latency else f"{value:,.0f}"
