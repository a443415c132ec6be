"""`trainwright serve allocate ENSEMBLE`: which member runs where, with which batch size, and what that is worth."""

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli._json import print_json
from trainwright.cli._plan_inputs import cluster_of
from trainwright.cli.formatting import print_table
from trainwright.ensemble import Ensemble
from trainwright.serve import DeploymentPlan
from trainwright.serve import allocate as search

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
        str, typer.Option("--objective", help="throughput, or throughput@MS within a latency.")
    ] = "throughput",
    trust: Annotated[
        bool, typer.Option("--trust", help="Load what needs more than known operators, as programs with your rights.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Find which member runs where, with which batch size; say what is expected and, if it was run, measured."""
    clusters = [cluster_of(text, nodes, force_units=False) for text in cluster or ()]
    plan = search(
        Ensemble.load(ensemble, trust=trust),
        devices if devices is not None or clusters else "cpu",
        cluster=clusters or None,
        objective=objective,
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
    if plan.expected or plan.measured:
        _show_worth(plan)


def _show_worth(plan: "DeploymentPlan") -> None:
    print(f"\n{plan.objective}, in rows a second:\n")
    lines = (
        ("worst fit", "worst_fit"),
        ("without worker processes", "in_process"),
        ("this plan", "value"),
        ("bound", "bound"),
    )
    rows = [
        (label, _show_figure(plan.expected.get(key)), _show_figure(plan.measured.get(key)))
        for label, key in lines
        if key in plan.expected or key in plan.measured
    ]
    print_table(("", f"expected ({plan.search['times']})", "measured"), rows)
    if plan.expected.get("worst_fit"):
        print(f"expected gain: {plan.expected['value'] / plan.expected['worst_fit']:.2f} x worst fit")


def _show_figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
