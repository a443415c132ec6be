"""`trainwright serve allocate ENSEMBLE`: which member runs where, with which batch size, and what that is worth."""

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli._json import print_json
from trainwright.cli._plan_inputs import cluster_of
from trainwright.cli.formatting import print_table
from trainwright.ensemble import Ensemble
from trainwright.errors import ServeConfigError
from trainwright.serve import DeploymentPlan
from trainwright.serve import allocate as search
from trainwright.serve.placement.objectives import objective_of

__all__ = ["allocate", "show_plan"]


def allocate(
    ensemble: Annotated[Path, typer.Argument(help="A folder that Ensemble.save wrote.")],
    *,
    devices: Annotated[str | None, typer.Option("--devices", help="Such as cuda:0,cpu:0-7.")] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", help="Simulated: a preset or a .toml or .yaml file; may be repeated."),
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="So many nodes of each cluster.")] = None,
    objective: Annotated[
        str, typer.Option("--objective", help="throughput, throughput@SLO_MS or p99@RATE.")
    ] = "throughput",
    cost: Annotated[str, typer.Option("--cost", help="profile, or real: run placements too.")] = "profile",
    trust: Annotated[
        bool, typer.Option("--trust", help="Load what needs more than known operators, as programs with your rights.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of the search.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Find which member runs where, with which batch size; say what is expected and, if it was run, measured."""
    if cost not in {"profile", "real"}:
        raise ServeConfigError(f"--cost: got {cost!r}; allowed: profile, real")
    goal = objective_of(objective)
    clusters = [cluster_of(text, nodes, force_units=False) for text in cluster or ()]
    plan = search(
        Ensemble.load(ensemble, trust=trust),
        devices if devices is not None or clusters else "cpu",
        cluster=clusters or None,
        objective=goal,
        cost="real" if cost == "real" else "profile",
        seed=seed,
    )
    show_plan(plan)
    if out is not None:
        print(f"plan: {plan.save(out)}")
    if json:
        print_json({**plan.to_json(), "out": None if out is None else str(out)})


def show_plan(plan: "DeploymentPlan") -> None:
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


def _show_worth(plan: "DeploymentPlan") -> None:
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
