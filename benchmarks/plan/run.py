"""The oracle beside measured runs: times and memory of others' machines, peaks of traced models, its own speed.

Claims and sources: accuracy on the ABCI logs beside ParaDL's (arXiv 2104.09075) on the same runs, one calibration on
at most 64 devices; vTrain's open measurements below its own 8.37 % and 14.73 % (MICRO 2024); Sia's data-parallel steps
(SOSP 2023) within 10 % on numbers of devices held out, beside Pollux' throughput model; published activation memory
within 1 % (arXiv 2205.05198 as calculon lists it); Megatron-LM's golden bytes within 10 % in the median; torchtitan's
tables of Llama runs (GitHub `pytorch/torchtitan`) within 15 %; traced peaks; a 96-layer transformer over all hybrids on
1,024 devices within a second. Any folder in the shared format will do; a table that is not there is skipped and named.

    python benchmarks/plan/run.py --data DIR --json [--parts abci,vtrain,sia,calculon,megatron,torchtitan,peaks,speed]
        [--results FILE]
"""

import argparse
import dataclasses
import importlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.plan import abci, accuracy, memory, sia, vtrain
from benchmarks.plan.coverage import Coverage

from trainwright.cluster import Cluster
from trainwright.model.describe.transformer import describe_transformer
from trainwright.plan import Oracle

HEADER = ("case", "oracle", "bar", "noise of repeats", "rows fitted + held out")
Row = tuple[str, ...]
Part = tuple[dict[str, Any], list[Row], dict[str, Any]]
"""Numbers of the summary, rows of the table, and what is kept besides."""


class _MissingError(Exception):
    """A table that the data folder has not, or a part that cannot run here."""


def abci_part(data: Path) -> Part:
    """Fit on at most 64 devices, predict every run, beside ParaDL; and reproduce what ParaDL printed."""
    folder = data / "abci"
    _need(folder / "epochs.csv")
    models = abci.networks(folder)
    runs = [run for run in abci.runs(folder) if run.model in models]
    if not runs:
        raise _MissingError(f"no layers_<model>.csv in {folder} for a model of its epochs.csv")
    scores = accuracy.score(models, runs)
    numbers: dict[str, Any] = {
        "abci_accuracy": dict(scores.ours),
        "abci_accuracy_paradl": dict(scores.paradl),
        "abci_accuracy_held_out": dict(scores.held_out),
        "abci_noise": dict(scores.noise),
        "abci_repeated_runs": {name: dict(found) for name, found in scores.repeated.items()},
        "abci_accuracy_fitted_to_16": dict(scores.crossed),
        "abci_data_parallel": accuracy.data_parallel_mean(scores.ours),
        "abci_data_parallel_noise": accuracy.data_parallel_mean(scores.noise),
    }
    rows: list[Row] = [
        (
            name,
            _percent(scores.ours[name]),
            _percent(scores.paradl[name]),
            _percent(scores.noise[name]),
            "{} + {}".format(*scores.counts[name]),
        )
        for name in scores.ours
    ]
    rows += [
        (
            f"{name}: runs that were repeated",
            _percent(found["ours"]),
            "",
            f"{_percent(found['one_run_by_another'])} (one by another)",
            f"{found['runs']:.0f}",
        )
        for name, found in scores.repeated.items()
    ]
    for name, found in scores.coverage.items():
        numbers |= found.summary(f"abci, {name}")
        rows.append((f"ABCI in the 90 % interval, left out: {name}", str(found), "85 %", "", ""))
    kept: dict[str, Any] = {
        "constants": dict(scores.fit.values),
        "at_bounds": scores.fit.at_bounds,
        "runs": scores.rows,
    }
    if (folder / "paradl_projections.csv").exists():
        explained, left, total = abci.reproduce(folder, models)
        numbers["paradl_rows_reproduced"], numbers["paradl_rows"] = sum(explained.values()), total
        kept["paradl_states"] = explained
        kept["paradl_left_out"] = [
            {name: row[name] for name in ("model", "strategy", "gpus", "source_path")}
            | {"reason": "halos of a state of the script in between, of which no listing is known"}
            for row in left
        ]
    return numbers, rows, kept


def vtrain_part(data: Path) -> Part:
    """Predict every row of vTrain's measurements by constants fitted without it."""
    folder = data / "parallel" / "vtrain"
    single, multi = folder / "ground_truth_single.csv", folder / "ground_truth_multi.csv"
    _need(single)
    server = vtrain.one_server(single)
    parts = {
        "one server": (server, "single_mape", "8.4 %"),
        "one server, another width": (vtrain.one_server(single, by="hidden"), "single_mape_other_width", "8.4 %"),
    }
    if multi.exists():
        parts["many servers"] = (vtrain.many_servers(multi, server.constants), "multi_mape", "14.7 %")
    numbers: dict[str, Any] = {}
    rows: list[Row] = []
    ranked = {name: part for name, (part, _, _) in parts.items() if "width" not in name}
    for label, suffix, column, names in (
        ("", "", "by_constants", parts.keys()),
        (", blocks measured", "_measured_blocks", "by_blocks", ranked.keys()),  # no block of another width was
    ):
        for name in names:
            part, key, bar = parts[name]
            found: vtrain.Predicted = getattr(part, column)
            held = f"{part.folds} folds of {len(part.measured)}"
            numbers[f"vtrain_{key}{suffix}"] = 100 * found.error
            numbers |= found.coverage.summary(f"vtrain, {name}{label}")
            rows += [
                (f"vTrain, {name}{label}: mean error", _percent(found.error), bar, "", held),
                (f"vTrain, {name}{label}: in the 90 % interval", str(found.coverage), "85 %", "", held),
            ]
        ranks = vtrain.ranks([(part, getattr(part, column)) for part in ranked.values()])
        numbers |= {f"kendall_tau{suffix}": ranks.tau, f"vtrain_top1_regret{suffix}": ranks.regret}
        rows += [
            (f"vTrain{label}: Kendall's tau", f"{ranks.tau:.3f}", "0.9", "", ""),
            (f"vTrain{label}: the predicted best is slower than the best by", _percent(ranks.regret), "5 %", "", ""),
        ]
    kept: dict[str, Any] = {name: {"constants": dict(part.constants)} for name, (part, _, _) in parts.items()}
    return numbers, rows, kept


def sia_part(data: Path) -> Part:
    """Predict data-parallel steps on numbers of devices that the fit has not seen, beside Pollux' model."""
    folder = data / "parallel" / "sia_traces"
    names = sia.traces(folder)
    if not names:
        raise _MissingError(f"no placements-<machine>.csv of {' or '.join(sia.MODELS)} in {folder}")
    found = {f"{model} {machine}": sia.evaluate(*sia.read(folder, model, machine)) for model, machine in names}
    columns = {"sia_mape": "error", "sia_mape_more_replicas": "error_more"}
    columns |= {"sia_mape_pollux": "pollux", "sia_mape_more_replicas_pollux": "pollux_more"}
    numbers: dict[str, Any] = {
        name: 100 * float(mean(getattr(trace, column) for trace in found.values())) for name, column in columns.items()
    }
    numbers["sia_mape_worst"] = 100 * max(trace.error for trace in found.values())
    numbers["sia_mape_more_replicas_worst"] = 100 * max(trace.error_more for trace in found.values())
    rows: list[Row] = []
    for name, trace in found.items():
        held = f"{trace.rows} in turn"
        rows += [
            (f"Sia, {name}: numbers of devices held out", _percent(trace.error), _beside(trace.pollux), "", held),
            (f"Sia, {name}: the larger half", _percent(trace.error_more), _beside(trace.pollux_more), "", ""),
        ]
    for label, column in (("held out", "coverage"), ("the larger half", "coverage_more")):
        each: list[Coverage] = [getattr(trace, column) for trace in found.values()]
        total = Coverage(mean(one.share for one in each), geometric_mean(one.factor for one in each))
        numbers |= total.summary(f"sia, {label}")
        rows.append((f"Sia: in the 90 % interval, {label}", str(total), "85 %", "", f"{len(each)} traces"))
    kept = {name: dataclasses.asdict(trace) for name, trace in found.items()}
    return numbers, rows, kept


def calculon_part(data: Path) -> Part:
    """Compare activation memory with the published figures, and iteration times by a preset as it is."""
    folder = data / "parallel" / "calculon"
    _need(folder / "figures.csv")
    found = memory.calculon(folder)
    worst = max(each["error"] for each in found)
    rows: list[Row] = [("activation memory, 22B to 1T: worst", _percent(worst), "1 %", "", f"0 + {len(found)}")]
    numbers = {"calculon_error_worst": worst}
    times = memory.calculon_seconds(folder)
    if times:
        numbers["calculon_seconds_mape_uncalibrated"] = 100 * mean(each["error"] for each in times)
        share = _percent(mean(each["error"] for each in times))
        rows.append(("iteration time, 22B to 1T, preset as it is: mean error", share, "", "", f"0 + {len(times)}"))
    return numbers, rows, {"figures": found, "seconds": times}


def megatron_part(data: Path) -> Part:
    """Compare peak bytes with Megatron-LM's golden values."""
    path = data / "parallel" / "megatron_golden" / "golden.csv"
    _need(path)
    golden = memory.megatron(path)
    groups = {name: float(median(abs(error) for error in errors)) for name, errors in golden.errors.items()}
    numbers = {"megatron_memory_median": groups["all"], "megatron_memory_median_by_group": groups}
    counts = f"{golden.calibration_rows} + {len(golden.errors['all'])}"
    row: Row = ("peak bytes of Megatron-LM's tests: median error", _percent(groups["all"]), "10 %", "", counts)
    return numbers, [row], {"left_out": dict(golden.left_out), "workspace_bytes": golden.workspace_bytes}


def torchtitan_part(data: Path) -> Part:
    """Predict torchtitan's tables: as a user without a calibration, and by constants fitted on the 8B runs alone."""
    path = data / "parallel" / "torchtitan" / "results.csv"
    _need(path)
    try:
        torchtitan = importlib.import_module("benchmarks.plan.torchtitan")
    except ImportError as error:
        raise _MissingError(f"{error}") from error
    from scipy.stats import kendalltau

    scores = torchtitan.score(path)
    held, measured = np.array(scores.held), scores.measured
    calibrated, plain = (np.abs(each / measured - 1) for each in (scores.calibrated, scores.uncalibrated))
    memory_errors = np.abs(scores.memory_errors())
    numbers = {
        "torchtitan_mape": 100 * float(calibrated[held].mean()),
        "torchtitan_mape_fitted": 100 * float(calibrated[~held].mean()),
        "torchtitan_mape_uncalibrated": 100 * float(plain.mean()),
        "torchtitan_memory_mape": 100 * float(memory_errors.mean()),
        "torchtitan_rank": float(kendalltau(scores.calibrated[held], measured[held]).statistic),
        "torchtitan_rank_in_tables": scores.ordered(),
    }
    count = f"{(~held).sum()} + {held.sum()}"
    every = f"0 + {len(held)}"
    rows: list[Row] = [
        ("torchtitan, 8B fitted; contexts, 70B, 405B, H200: mean error", _percent(float(calibrated[held].mean())),
         "15 %", "", count),
        ("torchtitan, presets as they are: mean error", _percent(float(plain.mean())), "15 %", "", every),
        ("torchtitan: GiB a device, no constants: mean error", _percent(float(memory_errors.mean())), "15 %", "",
         f"0 + {len(memory_errors)}"),
        ("torchtitan: Kendall's tau, not fitted", f"{numbers['torchtitan_rank']:.3f}", "0.9", "", count),
        ("torchtitan: pairs of a table in their order", _percent(scores.ordered()), "100 %", "", count),
    ]  # fmt: skip
    kept = {
        "constants": dict(scores.fit.values),
        "at_bounds": scores.fit.at_bounds,
        "left_out": dict(scores.left_out),
        "runs": [
            {
                "table": run.table,
                "row": run.row,
                "fitted": run.fitted,
                "tokens": run.tokens,
                "predicted": float(tokens),
                "uncalibrated": float(before),
                "gib": run.gib,
                "predicted_gib": float(gib),
            }
            for run, tokens, before, gib in zip(
                scores.runs, scores.calibrated, scores.uncalibrated, scores.gib, strict=True
            )
        ],
    }
    return numbers, rows, kept


def peaks_part(data: Path) -> Part:  # noqa: ARG001 -- every part is called alike
    """Compare peaks of traced models with tracked ones on this machine."""
    try:
        peaks = importlib.import_module("benchmarks.plan.peaks")
    except ImportError as error:
        raise _MissingError(f"{error}") from error
    measured: dict[str, Any] = peaks.measure()
    worst, false = float(measured["peak_error_worst"]), int(measured["false_fits"])
    count = str(measured.get("configurations", ""))
    rows: list[Row] = [
        ("peaks of traced models: worst error", _percent(worst), "3 %", "", count),
        ("false fits", str(false), "0", "", count),
    ]
    return {"peak_error_worst": worst, "false_fits": false}, rows, {"peaks": measured}


def speed_part(data: Path) -> Part:  # noqa: ARG001 -- every part is called alike
    """Plan a transformer of 96 layers over all hybrids on 1,024 devices: CPU seconds, the best of three."""
    profile = describe_transformer(
        hidden=12288, layers=96, heads=96, sequence=2048, vocabulary=51200, precision="amp-bf16"
    )
    oracle = Oracle(Cluster.preset("dgx-h100", nodes=128))
    seconds = []
    for _ in range(3):
        start = time.process_time()
        ranking = oracle.rank(profile, batch=1536, devices=1024, precision="amp-bf16")
        seconds.append(time.process_time() - start)
    row: Row = ("96 layers, all hybrids, 1,024 devices: CPU seconds", f"{min(seconds):.2f}", "1", "", "")
    return {"plan_seconds_1024_devices": min(seconds)}, [row], {"strategies": len(ranking), "priced": ranking.priced}


PARTS: Mapping[str, Callable[[Path], Part]] = {
    "abci": abci_part,
    "vtrain": vtrain_part,
    "sia": sia_part,
    "calculon": calculon_part,
    "megatron": megatron_part,
    "torchtitan": torchtitan_part,
    "peaks": peaks_part,
    "speed": speed_part,
}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the parts whose tables are there, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with abci/ and parallel/")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, with commas")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    names = arguments.parts.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"--parts: got {unknown[0]!r}; allowed: {', '.join(PARTS)}")
    if not arguments.data.is_dir():
        parser.error(f"--data: got {str(arguments.data)!r}; allowed: a folder with abci/ and parallel/")
    numbers: dict[str, Any] = {}
    rows: list[Row] = []
    kept: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name in names:
        progress(name)
        try:
            found, lines, details = PARTS[name](arguments.data)
        except _MissingError as reason:
            skipped[name] = str(reason)
            progress(f"{name} is skipped: {reason}")
            continue
        numbers |= found
        rows += lines
        kept[name] = details
    print(table(HEADER, rows))
    result = {
        "benchmark": "plan",
        "environment": environment(),
        "summary": numbers,
        "skipped": skipped,
        "table": {"header": HEADER, "rows": rows},
        "details": kept,
    }
    finish(result, arguments)
    return result


def _need(*paths: Path) -> None:
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise _MissingError(f"no {', '.join(missing)}")


def _beside(pollux: float) -> str:
    return f"10 %, Pollux {_percent(pollux)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
