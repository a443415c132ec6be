"""`trainwright plan fit RUNS.csv`: calibrate the oracle on training steps that were timed, and predict others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from trainwright.cli.command import ClusterName, Nodes, Result
from trainwright.cli.formatting import print_table
from trainwright.cli.inputs import find_cluster
from trainwright.cluster import Cluster
from trainwright.plan import Forecast, Oracle
from trainwright.plan.fit.baselines import constant_mfu_seconds, constant_seconds
from trainwright.plan.fit.fit_runs import FittedConstant, RunFit, fit_runs
from trainwright.plan.fit.measured_run import MeasuredRun
from trainwright.plan.fit.run_table import read_runs

__all__ = ["fit"]


def fit(
    runs: Annotated[Path, typer.Argument(help="A CSV file: models, degrees and seconds of timed iterations.")],
    *,
    cluster: ClusterName,
    nodes: Nodes = None,
    out: Annotated[Path | None, typer.Option(help="Write the fitted cluster to this file (.toml or .yaml).")] = None,
    predict: Annotated[Path | None, typer.Option(help="A CSV file of other runs, to be predicted.")] = None,
) -> Result:
    """Fit a cluster's constants to measured runs, and write it with the fit."""
    machine = find_cluster(cluster, nodes)
    table = read_runs(runs, machine)
    others = read_runs(predict, machine, measured=False) if predict is not None else None
    rows = table.runs + (others.runs if others else ())
    if nodes is None:
        # As many nodes as the largest run needs.
        machine = _enlarge(cluster, machine, max(run.layout.devices for run in rows))
    fitted = fit_runs(machine, table.runs)
    if out is not None:
        fitted.cluster.save(out)
    asked = others.runs if others else table.runs
    forecasts = [_forecast(fitted.cluster, run) for run in asked]
    baselines = {
        "constant_seconds": constant_seconds(table.runs, asked).tolist(),
        "constant_mfu": constant_mfu_seconds(machine, table.runs, asked).tolist(),
    }
    notes = [f"columns that mean nothing here: {', '.join(table.ignored)}"] if table.ignored else []
    notes += _list_beyond_memory(machine, table.runs, [_forecast(fitted.cluster, run) for run in table.runs])
    content = {
        "cluster": fitted.cluster.name,
        "out": None if out is None else str(out),
        "runs": len(table.runs),
        "predictions": [
            {
                "seconds": plan.seconds_per_iteration,
                "low": plan.interval[0],
                "high": plan.interval[1],
                "peak_bytes": plan.peak_bytes,
            }
            for plan in forecasts
        ],
        "constants": {name: asdict(each) for name, each in fitted.constants.items()},
        "at_bounds": list(fitted.at_bounds),
        "not_identified": [name for name, each in fitted.constants.items() if each.state == "not identified"],
        "error": fitted.cluster.errors["runs"],
        "baselines": baselines,
        "notes": notes,
    }

    def show() -> None:
        _show_constants(fitted)
        _show_errors(table.runs, fitted.residuals, constant_seconds(table.runs, table.runs),
                     constant_mfu_seconds(machine, table.runs, table.runs))  # fmt: skip
        if others is not None:
            _show_predictions(others.runs, forecasts)
        for note in notes:
            print(f"note: {note}")
        if out is not None:
            print(f"cluster file: {out}")

    return Result(content, show)


def _enlarge(name: str, cluster: Cluster, devices: int) -> Cluster:
    """Return a cluster of so many nodes that all runs find room; a file keeps its levels and their last one grows."""
    nodes = max(cluster.nodes, math.ceil(devices / cluster.devices_per_node))
    if nodes == cluster.nodes:
        return cluster
    if not Path(name).suffix:
        return find_cluster(name, nodes)
    levels = cluster.tiers
    if levels and levels[-1].devices < nodes * cluster.devices_per_node:
        levels = (*levels[:-1], replace(levels[-1], devices=nodes * cluster.devices_per_node))
    return replace(cluster, nodes=nodes, tiers=levels)


def _forecast(cluster: Cluster, run: MeasuredRun) -> Forecast:
    return Oracle(cluster).forecast(run.profile, run.layout, optimizer=run.optimizer, ring=run.ring)


def _list_beyond_memory(cluster: Cluster, runs: Sequence[MeasuredRun], forecasts: Sequence[Forecast]) -> list[str]:
    """Return a note on runs that could not have run as they are described."""
    memory = cluster.device.memory_bytes
    beyond = [run.where for run, plan in zip(runs, forecasts, strict=True) if memory and plan.peak_bytes > memory]
    if not beyond:
        return []
    words = f"{len(beyond)} of {len(runs)} runs would need more than a device's {memory / 1e9:.0f} GB as described"
    return [f"{words} (first: {beyond[0]}): are recompute, zero and optimizer what was run?"]


def _show_constants(fitted: RunFit) -> None:
    def words(each: FittedConstant) -> str:
        return f"{each.value / each.factor:.3g} - {each.value * each.factor:.3g}"

    print_table(
        ["constant", "before", "fitted", "68 % range", "what the runs say of it"],
        [
            [name, f"{each.start:.3g}", f"{each.value:.3g}", words(each), each.state]
            for name, each in fitted.constants.items()
        ],
    )


def _show_errors(runs: Sequence[MeasuredRun], residuals: Sequence[float], seconds: Any, mfu: Any) -> None:
    measured = np.array([run.seconds for run in runs])
    errors: Mapping[str, Any] = {
        "oracle": np.expm1(np.array(residuals)),
        "constant MFU": mfu / measured - 1,
        "constant seconds": seconds / measured - 1,
    }
    print(f"\n{len(runs)} runs, as they are fitted:")
    print_table(
        ["", "mean error", "worst"],
        [[name, f"{100 * abs(each).mean():.1f} %", f"{100 * abs(each).max():.0f} %"] for name, each in errors.items()],
    )


def _show_predictions(runs: Sequence[MeasuredRun], forecasts: Sequence[Forecast]) -> None:
    print()
    print_table(
        ["model", "strategy", "devices", "batch", "s/iteration", "low - high"],
        [
            [
                run.model,
                run.layout.strategy,
                run.layout.devices,
                run.layout.batch,
                f"{plan.seconds_per_iteration:.3g}",
                " - ".join(f"{end:.3g}" for end in plan.interval),
            ]
            for run, plan in zip(runs, forecasts, strict=True)
        ],
        left=2,
    )
