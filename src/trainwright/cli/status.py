"""`trainwright status DIR`: how a study stands."""

import math
from typing import Annotated, Any

import typer

from trainwright.cli._json import print_json

__all__ = ["status"]


def status(
    where: Annotated[str, typer.Argument(help="The study's directory, or its URL.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if the ledger has damaged records.")] = False,
) -> None:
    """Show the counts by state, the best trial and what the ledger had to drop."""
    from trainwright.study import Study

    with Study.open(where) as study:
        content = _content(study)
        dropped = study.dropped
        if json:
            for line in dropped:
                print(f"dropped: {line}")
            print_json(content)
        else:
            _show(where, content, dropped, interrupted=sum(trial.preempted for trial in study.trials))
    if strict and dropped:
        raise typer.Exit(1)


def _content(study: Any) -> dict[str, Any]:
    front = [
        {"trial": trial.number, "params": dict(trial.params), "values": dict(trial.values)} for trial in study.front
    ]
    content = {
        "trials": {str(state): count for state, count in study.state.counts.items()},
        "best": front[0] if front else None,
        **({"feasible": len(study.feasible)} if any(map(math.isfinite, study.state.limits)) else {}),
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in study.objectives],
        "dropped_records": len(study.dropped),
    }
    return content if len(study.objectives) == 1 else {**content, "front": front}


def _show(where: str, content: dict[str, Any], dropped: list[str], *, interrupted: int) -> None:
    goals = ", ".join(f"{o['direction']} {o['metric']}" for o in content["objectives"])
    words = {state: f"{count} {state}" for state, count in content["trials"].items() if count}
    if interrupted:  # not at a rung, as the others: they go on in the next run
        words["paused"] += f" ({interrupted} interrupted)"
    counts = ", ".join(words.values()) or "no trials yet"
    print(f"{where}: {goals}")
    print(f"trials: {counts}")
    if content.get("feasible") == 0 and content["best"]:
        print("none of the results keeps all bounds and constraints")
    if content["best"]:
        best = content["best"]
        values = ", ".join(f"{name}={value:.6g}" for name, value in best["values"].items())
        print(f"best: trial {best['trial']} with {values}")
        for name, value in best["params"].items():
            print(f"  {name} = {value}")
    for line in dropped:
        print(f"dropped: {line}")
