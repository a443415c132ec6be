"""The oracle beside measured runs of others: seconds, bytes, peaks of traced models, its own speed.

Claims and sources: `sources.py` and `memory.py`. Any folder in the shared format will do; a table that is not there is
skipped and named.

    python benchmarks/plan/run.py --data DIR --json [--parts seconds,paradl,calculon,megatron,peaks,speed]
        [--results FILE]
"""

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.plan import abci, accuracy, memory
from benchmarks.plan.sources import read_sources

from trainwright.cluster import Cluster
from trainwright.model.describe.transformer import describe_transformer
from trainwright.plan import Oracle

HEADER = (
    "case", "oracle", "worst", "constant MFU", "constant seconds", "tau", "in the 90 % interval",
    "rows fitted + held out",
)  # fmt: skip
Row = tuple[str, ...]
Part = tuple[dict[str, Any], list[Row], dict[str, Any]]
"""Numbers of the summary, rows of the table, and what is kept besides."""


class _MissingError(Exception):
    """A table that the data folder has not, or a part that cannot run here."""


def seconds_part(data: Path) -> Part:
    """Predict the runs of every source by fits that have not seen them, beside the baselines."""
    sources = read_sources(data)
    factors = accuracy.factors_without(sources)
    scores_within = (accuracy.score_within(source, factors[source.family]) for source in sources)
    within = [score for score in scores_within if score is not None]
    across = accuracy.score_across(sources, factors)
    numbers: dict[str, Any] = {}
    rows: list[Row] = []
    for title, scores in (("other models of the source", within), ("source left out", across)):
        key = "within" if scores is within else "across"
        numbers[f"{key}_error"] = mean(score.error for score in scores)
        numbers[f"{key}_error_by_source"] = {score.source: score.error for score in scores}
        every = sum(score.predicted for score in scores)
        numbers[f"{key}_covered"] = sum(score.covered * score.predicted for score in scores) / every
        numbers[f"{key}_factor"] = sum(score.factor * score.predicted for score in scores) / every
        rows += [
            (
                f"{score.source}: {title}",
                _percent(score.error),
                _percent(score.worst),
                _percent(score.constant_mfu),
                _percent(score.constant_seconds),
                f"{score.tau:.2f}" if score.tau == score.tau else "",
                f"{_percent(score.covered)}, factor {score.factor:.2f}",
                f"{score.fitted} + {score.predicted}",
            )
            for score in scores
        ]
    kept = {
        "shipped_factors": factors[""],
        "within": [asdict(score) for score in within],
        "across": [asdict(score) for score in across],
    }
    return numbers, rows, kept


def paradl_part(data: Path) -> Part:
    """Reproduce what ParaDL printed, by its own formulas."""
    folder = data / "abci"
    _need(folder / "paradl_projections.csv")
    explained, left, total = abci.reproduce(folder, abci.networks(folder))
    numbers = {"paradl_rows_reproduced": sum(explained.values()), "paradl_rows": total}
    kept = {
        "paradl_states": explained,
        "paradl_left_out": [{name: row[name] for name in ("model", "strategy", "gpus", "source_path")} for row in left],
    }
    row = _row("ParaDL's own projections, reproduced", f"{sum(explained.values())} of {total}", "", str(total))
    return numbers, [row], kept


def calculon_part(data: Path) -> Part:
    """Compare activation memory with the published figures, and iteration times by a preset as it is."""
    folder = data / "parallel" / "calculon"
    _need(folder / "figures.csv")
    found = memory.calculon(folder)
    worst = max(each["error"] for each in found)
    rows: list[Row] = [_row("activation memory, 22B to 1T", "", _percent(worst), f"0 + {len(found)}")]
    numbers = {"calculon_error_worst": worst}
    return numbers, rows, {"figures": found}


def megatron_part(data: Path) -> Part:
    """Compare peak bytes with Megatron-LM's golden values."""
    path = data / "parallel" / "megatron_golden" / "golden.csv"
    _need(path)
    golden = memory.megatron(path)
    groups = {name: float(median(abs(error) for error in errors)) for name, errors in golden.errors.items()}
    numbers = {"megatron_memory_median": groups["all"], "megatron_memory_median_by_group": groups}
    counts = f"{golden.calibration_rows} + {len(golden.errors['all'])}"
    row = _row("peak bytes of Megatron-LM's tests: median error", _percent(groups["all"]), "", counts)
    return numbers, [row], {"left_out": dict(golden.left_out), "workspace_bytes": golden.workspace_bytes}


def peaks_part(data: Path) -> Part:  # noqa: ARG001 -- every part is called alike
    """Compare peaks of traced models with tracked ones on this machine."""
    try:
        peaks = importlib.import_module("benchmarks.plan.peaks")
    except ImportError as error:
        raise _MissingError(f"{error}") from error
    # A run that was interrupted is continued by the next one of the same revision.
    kept = Path(tempfile.gettempdir()) / f"trainwright-peaks-{environment()['revision']}.jsonl"
    measured: dict[str, Any] = peaks.measure(kept=kept)
    numbers = {name: measured[name] for name in ("peak_error_median", "peak_error_worst", "below_worst", "false_fits")}
    count = f"{measured['configurations']} of {measured['models']} models"
    median_error, worst, below, false = numbers.values()
    rows: list[Row] = [
        _row("peaks beside torch's allocator: median error", _percent(median_error), _percent(worst), count),
        _row("peaks below the allocator's", "", _percent(below), count),
        _row("false fits", str(false), "", count),
    ]
    return numbers, rows, {"peaks": measured}


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
    row = _row("96 layers, all hybrids, 1,024 devices: CPU seconds", f"{min(seconds):.2f}", "", "")
    return {"plan_seconds_1024_devices": min(seconds)}, [row], {"strategies": len(ranking), "priced": ranking.priced}


PARTS: Mapping[str, Callable[[Path], Part]] = {
    "seconds": seconds_part,
    "paradl": paradl_part,
    "calculon": calculon_part,
    "megatron": megatron_part,
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


def _row(case: str, value: str, worst: str, count: str) -> Row:
    return (case, value, worst, "", "", "", "", count)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
