"""`trainwright checkpoint ...`: look at checkpoints, check and compare them, and choose how and when to save."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from trainwright.cli._json import print_json
from trainwright.cli._words import print_table, seconds
from trainwright.errors import InputError

__all__ = ["app"]

app = typer.Typer(
    name="checkpoint", help="Look at checkpoints, check and compare them; when to save, and what it costs.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip

_Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON.")]


@app.command()
def interval(
    *,
    cost: Annotated[str, typer.Option("--cost", help="What training feels of one save, e.g. 3s.")],
    mtbf: Annotated[
        str | None, typer.Option("--mtbf", help="Mean time between losses of all nodes together, e.g. 1d.")
    ] = None,
    losses: Annotated[int | None, typer.Option("--losses", help="In place of --mtbf: losses seen ...")] = None,
    node_time: Annotated[str, typer.Option("--node-time", help="... in so much time, nodes times hours.")] = "0",
    nodes: Annotated[int, typer.Option("--nodes", help="With --losses: the nodes of this run.")] = 1,
    recovery: Annotated[str, typer.Option("--recovery", help="From a loss until training goes on.")] = "0",
    persist: Annotated[str, typer.Option("--persist", help="From the start of a save until its commit.")] = "0",
    remaining: Annotated[str | None, typer.Option("--remaining", help="What is left of the allocation.")] = None,
    margin: Annotated[str, typer.Option("--margin", help="How long before its end the last commit lands.")] = "0",
    json: _Json = False,
) -> None:
    """How often to save: every estimator, and what following it costs."""
    from trainwright.checkpoint.interval import Costs, LossRate, estimates, plan_saves
    from trainwright.report.words import duration

    if (mtbf is None) == (losses is None):
        raise InputError(
            f"interval: got {'neither --mtbf nor' if mtbf is None else 'both --mtbf and'} --losses; allowed: one, such "
            "as --mtbf 1d, or --losses 3 --node-time 2000h --nodes 16"
        )
    if mtbf is not None:
        mean = seconds("--mtbf", mtbf)
    else:
        mean = LossRate().seen(losses or 0, seconds("--node-time", node_time)).mtbf_seconds(nodes)
    costs = Costs(
        mtbf_seconds=mean,
        cost_seconds=seconds("--cost", cost),
        recovery_seconds=seconds("--recovery", recovery),
        persist_seconds=seconds("--persist", persist),
    )
    found = estimates(costs)
    left = None if remaining is None else seconds("--remaining", remaining)
    plan = plan_saves(costs, remaining_seconds=left, drain_seconds=seconds("--margin", margin))
    print(
        f"a loss every {duration(mean)} on average, back after {duration(costs.recovery_seconds)}; "
        f"a save costs {duration(costs.cost_seconds)}\n"
    )
    print_table(
        ["estimator", "save every", "wall time", "useful"],
        [
            [
                estimate.name,
                duration(estimate.interval_seconds),
                f"+{100 * (estimate.wall_per_useful - 1):.2f} %",
                f"{100 * estimate.availability:.2f} %",
            ]
            for estimate in found
        ],
    )
    print("\nA Manager saves by the first. Wall time is that beyond a training that saves nothing and loses nothing.")
    if left is not None and plan.saves is not None:
        saves = "1 more save, after" if plan.saves == 1 else f"{plan.saves} more saves, every"
        print(plan.warning or f"in the {duration(left)} left: {saves} {duration(plan.interval_seconds)} of training")
    if json:
        estimated = [{**asdict(estimate), "availability": estimate.availability} for estimate in found]
        content: dict[str, Any] = {**asdict(costs), "estimates": estimated}
        print_json({**content, "plan": None if left is None else asdict(plan)})
