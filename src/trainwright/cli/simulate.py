"""`trainwright simulate FILE`: what a study would take, under several schedulers, before it is submitted."""

import hashlib
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli._simulate_file import read_plan
from trainwright.cli.command import Result
from trainwright.cli.formatting import print_table
from trainwright.engine.devices import cores
from trainwright.plugins import describe
from trainwright.report.gantt import check_gantt, write_gantt
from trainwright.study import Forecast
from trainwright.study.forecast.forecast import Spread, forecasts

__all__ = ["simulate"]


def simulate(
    file: Annotated[Path, typer.Argument(help="A study file (.toml) with a [simulate] table.")],
    *,
    gpus: Annotated[list[int] | None, typer.Option(help="Devices of the cluster; may be repeated.")] = None,
    trials: Annotated[int | None, typer.Option(help="Trials of the study.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many studies to simulate of each kind.")] = None,
    processes: Annotated[int | None, typer.Option(help="Simulations at once; default: all cores.")] = None,
    gantt: Annotated[Path | None, typer.Option(help="Draw who held which device when: .html or .svg.")] = None,
) -> Result:
    """Forecast time, GPU-hours, use and results of a study on a cluster, with intervals; nothing is trained."""
    if gantt is not None:
        check_gantt(gantt)
    plan = read_plan(file, gpus=gpus, trials=trials, seeds=seeds)
    found: dict[int, dict[str, Forecast]] = {}
    for devices in plan.gpus:
        found[devices] = forecasts(
            plan.schedulers,
            plan.engine(devices),
            trials=plan.trials,
            seeds=plan.seeds,
            processes=processes if processes is not None else cores(),
            gantt=gantt is not None,
        )
        _show_forecasts(devices, plan.trials, plan.seeds, found[devices])
    if gantt is not None:
        # One simulated study of each kind is drawn: the first seed stands for the others.
        panels = {
            (name if len(plan.gpus) == 1 else f"{name}, {devices} GPUs"): (devices, forecast.runs[0])
            for devices, item in found.items()
            for name, forecast in item.items()
        }
        write_gantt(gantt, panels)
        print(f"gantt: {gantt}")
    content = [
        {"gpus": devices, "scheduler": name, **_collect_content(forecast)}
        for devices, item in found.items()
        for name, forecast in item.items()
    ]
    return Result({"trials": plan.trials, "seeds": plan.seeds, "forecasts": content})


_SPREADS = (
    "makespan_seconds", "gpu_hours", "utilisation", "first_full_seconds", "full", "best_loss", "resizes", "failed",
)  # fmt: skip


def _collect_content(forecast: "Forecast") -> dict[str, Any]:
    spreads = {name: getattr(forecast, name) for name in _SPREADS}
    return {
        "rule": describe("rule", forecast.scheduler.rule),
        "policy": describe("policy", forecast.scheduler.policy),
        **{name: {"mean": item.mean, "low": item.low, "high": item.high} for name, item in spreads.items()},
        "stalls": forecast.stalls,
        "substitutions": forecast.substitutions,
        "digest": hashlib.sha256("".join(run.digest for run in forecast.runs).encode()).hexdigest(),
    }


def _show_forecasts(devices: int, trials: int, seeds: int, found: "dict[str, Forecast]") -> None:
    print(
        f"\n{devices} GPUs, {trials} trials; means of {seeds} simulated studies, nine of ten lie between (low - high)\n"
    )
    header = ("scheduler", "makespan", "GPU-hours", "busy", "first full", "full", "best loss", "resizes")
    rows = [
        (
            _scheduler_name(name, forecast),
            _format_times(forecast.makespan_seconds),
            _format_spread(forecast.gpu_hours, 1.0, ""),
            f"{100 * forecast.utilisation.mean:.0f} %",
            _format_times(forecast.first_full_seconds),
            f"{forecast.full.mean:.1f}",
            f"{forecast.best_loss.mean:.4g}",
            f"{forecast.resizes.mean:.0f}",
        )
        for name, forecast in found.items()
    ]
    print_table(header, rows)
    for name, forecast in found.items():
        stalled = next((run for run in forecast.runs if run.stalled), None)
        if stalled is not None:
            stall = stalled.stalled[0]
            print(
                f"{name}: {forecast.stalls} of {seeds} studies stalled: trial {stall.trial} waits for "
                f"{stall.wanted} GPUs, there are {stall.devices}"
            )
        if forecast.substitutions:
            print(f"{name}: for {forecast.substitutions} trials of all studies the table had not what was asked")


def _scheduler_name(name: str, forecast: "Forecast") -> str:
    """Return the scheduler's name, and the size of a trial where that is all there is to its policy."""
    policy = forecast.scheduler.policy
    size = getattr(policy, "devices", None)
    return name if size is None else f"{name} ({size} GPU{'s' * (size > 1)} a trial)"


def _format_times(spread: "Spread") -> str:
    """Return a spread of seconds in the unit that fits its mean."""
    # One study without a whole trial makes the mean infinite.
    if math.isinf(spread.mean):
        return "never" if math.isinf(spread.low) else "not always"
    units = (("d", 172_800, 86_400), ("h", 7200, 3600), ("min", 120, 60))
    unit, seconds = next(((name, item) for name, least, item in units if spread.mean >= least), ("s", 1))
    return _format_spread(spread, seconds, f" {unit}")


def _format_spread(spread: "Spread", unit: float, name: str) -> str:
    low, mean, high = (
        f"{value / unit:.{0 if value >= 100 * unit else 1}f}" for value in (spread.low, spread.mean, spread.high)
    )
    return f"{mean}{name}" if low == high else f"{mean}{name} ({low} - {high})"
