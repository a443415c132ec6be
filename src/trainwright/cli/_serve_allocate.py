"""`trainwright serve allocate ENSEMBLE`: which member runs where, with which batch size, and what that is worth."""

from typing import Annotated, Any

import typer

from trainwright.cli.command import Result
from trainwright.cli.inputs import find_cluster
from trainwright.cli.options import EnsembleFolder, Nodes, PlanFile, Trust, options_of
from trainwright.cli.workflow.allocation import AllocationSettings, show_plan
from trainwright.ensemble import Ensemble
from trainwright.serve import allocate as find_placement

__all__ = ["allocate"]


@options_of(AllocationSettings)
def allocate(
    ensemble: EnsembleFolder,
    *,
    changes: dict[str, Any],
    cluster: Annotated[
        list[str] | None, typer.Option(help="Simulated: a preset or a .toml or .yaml file; may be repeated.")
    ] = None,
    nodes: Nodes = None,
    trust: Trust = False,
    out: PlanFile = None,
) -> Result:
    """Find which member runs where, with which batch size; say what is expected and, if it was run, measured."""
    settings = AllocationSettings(**changes)
    clusters = [find_cluster(name, nodes) for name in cluster or ()]
    # Simulated devices take the place of those of this machine, unless both are asked for.
    devices = settings.devices if "devices" in changes or not clusters else None
    plan = find_placement(
        Ensemble.load(ensemble, trust=trust),
        devices,
        cluster=clusters or None,
        objective=settings.objective,
    )
    show_plan(plan)
    if out is not None:
        print(f"plan: {plan.save(out)}")
    return Result({**plan.to_json(), "out": None if out is None else str(out)})
