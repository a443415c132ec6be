"""`trainwright serve allocate ENSEMBLE`: which member runs where, with which batch size."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.cli._json import print_json
from trainwright.cli._words import print_table

if TYPE_CHECKING:
    from trainwright.serve import Plan

__all__ = ["allocate", "show_matrix"]


def allocate(
    ensemble: Annotated[Path, typer.Argument(help="A folder that Ensemble.save wrote.")],
    *,
    devices: Annotated[str, typer.Option("--devices", help="Such as cuda:0,cpu:0-7.")] = "cpu",
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Place the members of an ensemble on devices."""
    from trainwright.ensemble import Ensemble
    from trainwright.serve import Plan

    plan = Plan.simple(Ensemble.load(ensemble), devices)
    show_matrix(plan)
    if out is not None:
        print(f"plan: {plan.save(out)}")
    if json:
        print_json(plan.to_json())


def show_matrix(plan: "Plan") -> None:
    """Print who runs where: a row per unit, a column per device, batch sizes in them."""
    header = ("unit", *(device.name for device in plan.devices))
    print("rows of a batch by unit and device; - is no instance\n")
    print_table(
        header, [(unit.name, *(row[place] or "-" for row in plan.matrix)) for place, unit in enumerate(plan.units)]
    )
