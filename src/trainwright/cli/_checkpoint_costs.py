"""`trainwright checkpoint interval` and `bench`: when to save, and what it costs."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.checkpoint.policy.interval import Costs, plan_saves
from trainwright.checkpoint.tools.bench import bench as measure
from trainwright.checkpoint.tools.bench import collect_state
from trainwright.checkpoint.tools.estimators import FailureRate, compare_estimators
from trainwright.cli._json import print_json
from trainwright.cli.formatting import print_table, seconds, size
from trainwright.errors import InputError, closest
from trainwright.report.formatting import duration

__all__ = ["bench", "interval"]


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
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """How often to save: every estimator, and what following it costs."""
    if (mtbf is None) == (losses is None):
        raise InputError(
            f"interval: got {'neither --mtbf nor' if mtbf is None else 'both --mtbf and'} --losses; allowed: one, such "
            "as --mtbf 1d, or --losses 3 --node-time 2000h --nodes 16"
        )
    if mtbf is not None:
        mean = seconds("--mtbf", mtbf)
    else:
        mean = FailureRate().observe(losses or 0, seconds("--node-time", node_time)).mtbf_seconds(nodes)
    costs = Costs(
        mtbf_seconds=mean,
        cost_seconds=seconds("--cost", cost),
        recovery_seconds=seconds("--recovery", recovery),
        persist_seconds=seconds("--persist", persist),
    )
    found = compare_estimators(costs)
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


def bench(
    factory: Annotated[
        str, typer.Argument(help="MODULE:FUNCTION that returns a model, (model, optimizer), or a dict of state.")
    ],
    *,
    directory: Annotated[
        Path | None, typer.Option("--directory", help="The disk to measure (default: that of the current folder).")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Rounds, after one to warm up.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Measure what saving and restoring a model of yours costs, by format and by writer, on your disk."""
    done = measure(
        collect_state(_make_state(factory)),
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
    if json:
        print_json({**asdict(done), "recommendation": done.recommendation})


def _show_progress(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _make_state(text: str) -> Any:
    """Return what the factory MODULE:FUNCTION makes, or say in one sentence why it makes nothing."""
    module_name, _, name = text.partition(":")
    if not all(module_name.split(".")) or not name:
        raise InputError(f"factory: got {text!r}; allowed: MODULE:FUNCTION, such as my_project.models:build")
    sys.path.insert(0, str(Path.cwd()))
    module = _own_interval(lambda: importlib.import_module(module_name), f"importing {module_name}")
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"factory: {module_name} has no function {name!r}{closest(name, known)}")
    return _own_interval(function, f"{text}()")


def _own_interval(call: Callable[[], Any], what: str) -> Any:
    try:
        return call()
    except Exception as error:  # whatever a user's code may raise
        line = str(error).strip().splitlines()
        raise InputError(f"factory: {what} fails: {type(error).__name__}{f': {line[0]}' if line else ''}") from error
