"""`trainwright checkpoint interval` and `bench`: when to save, and what it costs."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trainwright.checkpoint.policy.interval import Costs, plan_saves
from trainwright.checkpoint.tools.bench import bench as measure
from trainwright.checkpoint.tools.bench import collect_state
from trainwright.checkpoint.tools.estimators import compare_estimators
from trainwright.cli.command import Result
from trainwright.cli.formatting import print_table, seconds, size
from trainwright.cli.inputs import call_function
from trainwright.report.formatting import duration

__all__ = ["bench", "interval"]


def interval(
    *,
    cost: Annotated[str, typer.Option(help="What training feels of one save, e.g. 3s.")],
    mtbf: Annotated[str, typer.Option(help="Mean time between losses of all nodes together, e.g. 1d.")],
    recovery: Annotated[str, typer.Option(help="From a loss until training goes on.")] = "0",
    persist: Annotated[str, typer.Option(help="From the start of a save until its commit.")] = "0",
    remaining: Annotated[str | None, typer.Option(help="What is left of the allocation.")] = None,
    margin: Annotated[str, typer.Option(help="How long before its end the last commit lands.")] = "0",
) -> Result:
    """How often to save: every estimator, and what following it costs."""
    costs = Costs(
        mtbf_seconds=seconds("--mtbf", mtbf),
        cost_seconds=seconds("--cost", cost),
        recovery_seconds=seconds("--recovery", recovery),
        persist_seconds=seconds("--persist", persist),
    )
    found = compare_estimators(costs)
    left = None if remaining is None else seconds("--remaining", remaining)
    plan = plan_saves(costs, remaining_seconds=left, drain_seconds=seconds("--margin", margin))
    print(
        f"a loss every {duration(costs.mtbf_seconds)} on average, back after {duration(costs.recovery_seconds)}; "
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
    estimated = [{**asdict(estimate), "availability": estimate.availability} for estimate in found]
    return Result({**asdict(costs), "estimates": estimated, "plan": None if left is None else asdict(plan)})


def bench(
    factory: Annotated[
        str, typer.Argument(help="MODULE:FUNCTION that returns a model, (model, optimizer), or a dict of state.")
    ],
    *,
    directory: Annotated[
        Path | None, typer.Option(help="The disk to measure (default: that of the current folder).")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Rounds, after one to warm up.")] = 5,
) -> Result:
    """Measure what saving and restoring a model of yours costs, by format and by writer, on your disk."""
    done = measure(
        collect_state(call_function("factory", factory)),
        directory=directory or Path.cwd(),
        repeats=repeats,
        progress=_show_progress if sys.stderr.isatty() else lambda _: None,
    )
    if sys.stderr.isatty():
        _show_progress("")
    rounds = f"{done.repeats} round{'' if done.repeats == 1 else 's'}"
    print(f"{done.tensors} tensors, {size(done.raw_bytes)}; medians of {rounds}, in seconds\n")
    print_table(
        ["", "blocking", "written", "GB/s", "restored", "size", "files", "bitwise"],
        [
            [
                row.name,
                f"{row.blocking:.3f}",
                f"{row.total:.3f}",
                f"{row.bytes / row.total / 1e9:.2f}",
                f"{row.restore:.3f}",
                f"{row.bytes / done.raw_bytes:.3f}",
                row.files,
                "yes" if row.bitwise else "NO",
            ]
            for row in done.rows
        ],
    )
    for name, why in done.skipped.items():
        print(f"left out: {name}: {why}")
    print(f"\n{done.recommendation}")
    return Result({**asdict(done), "recommendation": done.recommendation})


def _show_progress(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
