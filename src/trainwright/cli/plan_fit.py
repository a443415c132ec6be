"""Commands that make a cluster file: `trainwright plan fit`, `plan calibrate` and `plan import-network`.

The first calibrates the oracle on training steps that were timed, and predicts others; the second measures a machine by
all ranks that were started; the third asks the output of other tools.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from trainwright.cli.command import Argument, ClusterName, Nodes, Option, Result, print_rows, print_table
from trainwright.cli.inputs import find_cluster
from trainwright.cluster import Cluster
from trainwright.cluster.calibration.ranks import RankPlace, find_rank_place
from trainwright.errors import InputError
from trainwright.files import read_text
from trainwright.plan import Forecast, Oracle
from trainwright.plan.fit.fit_runs import FittedConstant, fit_runs
from trainwright.plan.fit.measured_run import MeasuredRun, constant_mfu_seconds, constant_seconds
from trainwright.plan.fit.run_table import read_runs
from trainwright.validators import check, number

__all__ = ["calibrate", "fit", "import_network"]


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
    return Oracle(cluster).forecast(run.profile, run.layout, optimizer=run.optimizer, context_by=run.context_by)


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


_BUSY = 0.5  # load a core from which other work is likely to have lengthened every time


def calibrate(
    *,
    out: Annotated[Path, Option(help="The cluster file to write, .toml.")],
    devices: Annotated[str, Option(help="cpu or cuda.")] = "cpu",
    launch: Annotated[str | None, Option(help="What started the ranks: torchrun, slurm or mpi.")] = None,
    storage: Annotated[Path | None, Option(help="Folder to measure storage in [that of --out].")] = None,
    repeats: Annotated[int, Option(help="How often each thing is timed.")] = 25,
    largest: Annotated[float, Option(help="Largest message in bytes.")] = 64 * 2**20,
    file: Annotated[float, Option(help="Bytes of the file that is written and read.")] = 256 * 2**20,
) -> Result | None:
    """Measure compute, memory, storage and, on two ranks or more, links; write them with their errors."""
    # Measuring needs torch, which the other commands of `plan` do without.
    from trainwright.cluster.calibration.calibrate import calibrate as measure

    here = find_rank_place(launch)
    folder = storage if storage is not None else out.parent
    if not folder.is_dir():
        raise InputError(f"{'--storage' if storage else '--out'}: got {folder}, which is no folder; make it first")
    for option, size in (("--largest", largest), ("--file", file)):
        check(size, number(minimum=256, maximum=1e12, of="bytes"), option)
    cluster = measure(
        here,
        devices=devices,
        name=out.stem,
        folder=folder,
        repeats=repeats,
        largest=int(largest),
        file_bytes=int(file),
        say=lambda text: print(f"measuring {text}", file=sys.stderr, flush=True),
    )
    # Rank 0 has the result.
    if cluster is None:
        return None
    cluster.save(out)
    notes = _notes(cluster, here)
    _show(cluster, notes)
    print(f"cluster file: {out}")
    return Result({**asdict(cluster), "cluster": cluster.name, "out": str(out), "notes": notes})


def import_network(
    files: Annotated[
        list[Path], Argument(help="Output of nvidia-smi topo -m or of nccl-tests, or Slurm's topology.conf.")
    ],
    *,
    cluster: ClusterName,
    nodes: Nodes = None,
    out: Annotated[Path, Option(help="The cluster file to write, .toml.")],
) -> Result:
    """Give a cluster the network that tools have measured or described, and write it."""
    from trainwright.cluster.calibration.tool_output import adapt_cluster

    texts = {str(file): read_text(file, "tool output", allowed="a text file") for file in files}
    found = adapt_cluster(find_cluster(cluster, nodes), texts)
    found.save(out)

    def show() -> None:
        names = ("devices", "alpha", "bandwidth", "reached", "links_per_node")
        rows = [(tier.name, *(f"{getattr(tier, name):.4g}" for name in names)) for tier in found.tiers]
        print_table(("level", *names), rows)
        print(f"cluster file: {out}")

    content = {"cluster": found.name, "nodes": found.nodes, "out": str(out)}
    return Result({**content, "tiers": [asdict(tier) for tier in found.tiers]}, show)


def _notes(cluster: Cluster, here: RankPlace) -> list[str]:
    notes = []
    if here.world == 1:
        notes.append("one rank: links need two ranks or more, started by torchrun, srun or mpirun")
    # Other work lengthens every time that is measured.
    load, cores = float(cluster.conditions.get("load_before", 0.0)), os.cpu_count() or 1
    if load > _BUSY * cores:
        notes.append(f"load of {load:g} on {cores} cores before the start: measure again on a quiet machine")
    if worlds := sorted({ranks for tier in cluster.tiers for ranks in tier.worlds}):
        sizes = ", ".join(map(str, worlds))
        notes.append(f"ranks that share processors: holds for groups of {sizes} ranks, and is refused for others")
    return notes


def _show(cluster: Cluster, notes: list[str]) -> None:
    """Print the figures of the file, in its words and units, and the errors of what was fitted."""
    device, storage = cluster.device, cluster.storage
    rows = [(f"flops, {name}", rate) for name, rate in device.flops.items()]
    rows += [(f"efficiency, {kind}", share) for kind, share in device.efficiency.items()]
    rows += [(name, getattr(device, name)) for name in ("memory_bandwidth", "launch_seconds", "host_bandwidth")]
    for tier in cluster.tiers:
        rows += [(f"{name}, tier {tier.name}", getattr(tier, name)) for name in ("alpha", "bandwidth")]
    rows += [(f"storage, {name}", getattr(storage, name)) for name in ("node_read", "write")]
    rows += [(f"error, {name}", error) for name, error in cluster.errors.items()]
    print(f"{device.kind}: {cluster.nodes} x {cluster.devices_per_node} devices\n")
    print_table(("what", "measured"), [(name, f"{value:.4g}") for name, value in rows if value])
    for note in notes:
        print(f"note: {note}")
