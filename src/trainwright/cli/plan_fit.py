"""`trainwright plan fit RUNS.csv`: calibrate the oracle on training steps that were timed, and predict others."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from trainwright.cli.command import Argument, ClusterName, Nodes, Option, Result
from trainwright.cli.formatting import print_rows
from trainwright.cli.inputs import find_cluster
from trainwright.cluster import Cluster
from trainwright.plan import Forecast, Oracle
from trainwright.plan.fit.fit_runs import FittedConstant, fit_runs
from trainwright.plan.fit.measured_run import MeasuredRun, constant_mfu_seconds, constant_seconds
from trainwright.plan.fit.run_table import read_runs

__all__ = ["fit"]


def fit(
    runs: Annotated[Path, Argument(help="A CSV file: models, degrees and seconds of timed iterations.")],
    *,
    cluster: ClusterName,
    nodes: Nodes = None,
    out: Annotated[Path | None, Option(help="Write the fitted cluster to this file (.toml).")] = None,
    predict: Annotated[Path | None, Option(help="A CSV file of other runs, to be predicted.")] = None,
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
        print_rows([_describe_constant(name, each) for name, each in fitted.constants.items()])
        print(f"\n{len(table.runs)} runs, as they are fitted:")
        print_rows(_describe_errors(machine, table.runs, fitted.residuals))
        if others is not None:
            print()
            print_rows([_describe_prediction(run, plan) for run, plan in zip(asked, forecasts, strict=True)], left=2)
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


def _describe_constant(name: str, each: FittedConstant) -> dict[str, str]:
    return {
        "constant": name,
        "before": f"{each.start:.3g}",
        "fitted": f"{each.value:.3g}",
        "68 % range": f"{each.value / each.factor:.3g} - {each.value * each.factor:.3g}",
        "what the runs say of it": each.state,
    }


def _describe_errors(cluster: Cluster, runs: Sequence[MeasuredRun], residuals: Sequence[float]) -> list[dict[str, str]]:
    measured = np.array([run.seconds for run in runs])
    errors = {
        "oracle": np.expm1(np.array(residuals)),
        "constant MFU": constant_mfu_seconds(cluster, runs, runs) / measured - 1,
        "constant seconds": constant_seconds(runs, runs) / measured - 1,
    }
    return [
        {"": name, "mean error": f"{100 * abs(each).mean():.1f} %", "worst": f"{100 * abs(each).max():.0f} %"}
        for name, each in errors.items()
    ]


def _describe_prediction(run: MeasuredRun, plan: Forecast) -> dict[str, object]:
    return {
        "model": run.model,
        "strategy": plan.strategy,
        "devices": plan.devices,
        "batch": plan.batch,
        "s/iteration": f"{plan.seconds_per_iteration:.3g}",
        "low - high": " - ".join(f"{end:.3g}" for end in plan.interval),
    }
