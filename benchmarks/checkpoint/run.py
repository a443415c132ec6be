"""Checkpoints: how little they stop a training, that none is lost or wrong, when to save, and that resuming is exact.

    python benchmarks/checkpoint/run.py --json
    python benchmarks/checkpoint/run.py --parts kills,flips --kills 1000 --results benchmarks/results/checkpoint.json

Parts: `blocking` beside torch.save and torch.load with states of 200 MB and 1 GB; `durable` beside torch's
asynchronous saving; `kills` of a process that saves; `flips` of single bits and other damages; `intervals` beside the
best that simulated losses show; `resume` in every combination of workers, ranks and precision, bit for bit. With
`--results FILE` the parts that are not run stay as they are in the file; `--parts ""` runs none, and makes summary and
table anew.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table
from benchmarks.checkpoint.blocking import compare_blocking, idle_step_seconds
from benchmarks.checkpoint.durable import compare_durable
from benchmarks.checkpoint.flips import DAMAGES, damage_at_random
from benchmarks.checkpoint.intervals import compare_intervals
from benchmarks.checkpoint.kills import kill_while_saving

__all__ = ["PARTS", "main"]

_SIZES = {"200mb": 200_000_000, "1gb": 1_000_000_000}


def blocking(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure how long saves stop a training, and how long restores take."""
    summary: dict[str, Any] = {"step_idle_us": 1e6 * idle_step_seconds(folder / "idle")}
    rounds = {}
    for name in arguments.sizes.split(","):
        progress(f"blocking: {name}, {arguments.rounds} rounds")
        found = compare_blocking(folder / name, _SIZES[name], arguments.rounds)
        rounds[name] = asdict(found)
        torch_save = found.median("torch.save")
        summary |= {
            f"blocking_over_torch_save_{name}": found.median("blocking") / torch_save,
            f"blocking_ms_{name}": 1e3 * found.median("blocking"),
            f"torch_save_ms_{name}": 1e3 * torch_save,
            f"slowdown_over_torch_save_{name}": found.median("slowdown") / torch_save,
            f"persist_over_torch_save_{name}": found.median("persist") / torch_save,
            f"page_cache_dropped_{name}": found.cold,
        }
        for kind in ("cold", "warm"):
            for ours, theirs, key in (
                ("restore", "torch.load", "restore_over_torch_load"),
                ("restore, verified", "torch.load and hash", "verified_over_load_and_hash"),
            ):
                pair = f"{ours}, {kind}", f"{theirs}, {kind}"
                cpu = f"{pair[0]}, cpu", f"{pair[1]}, cpu"
                summary[f"{key}_{kind}_{name}"] = found.ratio(*pair)
                summary[f"{key}_{kind}_least_{name}"] = found.least(pair[0]) / found.least(pair[1])
                summary[f"{key}_{kind}_cpu_{name}"] = found.ratio(*cpu)
    return {"summary": summary, "rounds": rounds}


def durable(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure what a save costs until it is on disk, beside torch's asynchronous saving."""
    progress(f"durable: {arguments.rounds} rounds")
    found = compare_durable(folder, _SIZES["200mb"], arguments.rounds)
    ours, theirs = ({key: found[name, key] for key in ("wall", "processor")} for name in ("ours", "dcp"))
    summary = {"durable_ms": 1e3 * statistics.median(ours["wall"])}
    for key, times in ours.items():
        summary[f"durable_{key}_over_dcp"] = statistics.median(times) / statistics.median(theirs[key])
        summary[f"durable_{key}_over_dcp_mean"] = sum(times) / sum(theirs[key])
    return {"summary": summary, "rounds": {"ours": ours, "dcp": theirs}}


def kills(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Kill a saving process at random moments: half with a thread that writes, half with none."""
    summary = dict.fromkeys(("kills", "kills_lost", "kills_wrong", "kills_half_done", "kills_commits"), 0)
    writers = ("thread", "sync")
    for place, writer in enumerate(writers):
        count = arguments.kills // len(writers) + (arguments.kills % len(writers) if place == 0 else 0)
        progress(f"kills: {count}, writer {writer}")
        found = kill_while_saving(folder / writer, count, seed=arguments.seed + place, writer=writer)
        for name, value in asdict(found).items():
            summary[name if name == "kills" else f"kills_{name}"] += value
    return {"summary": summary}


def flips(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Flip bits at random; then damage files in every way."""
    progress(f"flips: {arguments.flips} bits")
    bits = damage_at_random(folder / "bits", arguments.flips, seed=arguments.seed)
    progress(f"flips: {arguments.flips} damages of all kinds")
    all_kinds = damage_at_random(folder / "all", arguments.flips, seed=arguments.seed, kinds=tuple(DAMAGES))
    return {
        "summary": {
            "bit_flips": bits.damages,
            "bit_flips_undetected": bits.undetected,
            "damages": all_kinds.damages,
            "damages_undetected": all_kinds.undetected,
        }
    }


def intervals(arguments: argparse.Namespace, _folder: Path) -> dict[str, Any]:
    """Compare the rule for the interval with the best one that simulation finds."""
    progress(f"intervals: {arguments.failures:,} losses of each law")
    found = compare_intervals(arguments.failures, arguments.ratios, arguments.seed)
    return {
        "summary": {
            "interval_cells": found.cells,
            "interval_gap_worst": found.gaps["exact"],
            **{f"interval_gap_worst_{name}": gap for name, gap in found.gaps.items() if name != "exact"},
            **{f"wall_beyond_best_{law}": lost for law, lost in found.losses.items()},
            "young_leaves_2_percent_at": found.young_leaves_at,
            "horizons": found.horizons,
            "horizon_mistakes": found.horizon_mistakes,
        }
    }


def resumes(arguments: argparse.Namespace, _folder: Path) -> dict[str, Any]:
    """Resume trainings in every combination, and compare bit by bit."""
    from benchmarks.checkpoint.resume import CASES, QUICK, resize, resume

    cases = QUICK if arguments.quick else CASES
    progress(f"resume: {len(cases)} combinations")
    combinations, mismatches = resume(cases)
    summary: dict[str, Any] = {"resume_combinations": combinations, "resume_mismatches": len(mismatches)}
    if not arguments.quick:
        progress("resume: 1, 2, 4 and 1 ranks")
        slots, _ = resize("slots")
        samples, apart = resize("ddp")
        summary |= {"resize_mismatches_slots": len(slots), "resize_mismatches_ddp_samples": len(samples)}
        summary |= {"resize_apart_ddp": apart}
        mismatches += slots + samples
    return {"summary": summary, "mismatches": mismatches}


PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
    "blocking": blocking,
    "durable": durable,
    "kills": kills,
    "flips": flips,
    "intervals": intervals,
    "resume": resumes,
}
"""The parts by name; each returns its share of the summary."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the parts and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    parser.add_argument("--sizes", default=",".join(_SIZES), help="of the states in blocking")
    parser.add_argument("--rounds", type=int, default=20, help="saves and restores of each kind in blocking")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--failures", type=int, default=4_000_000, help="losses drawn for each law in intervals")
    parser.add_argument("--ratios", type=int, default=24, help="costs over MTBF in intervals")
    parser.add_argument("--quick", action="store_true", help="few combinations in resume, no change of ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, default=ROOT / "benchmarks", help="the disk to measure")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    for option, value, known in (("--parts", arguments.parts, PARTS), ("--sizes", arguments.sizes, _SIZES)):
        wrong = [name for name in value.split(",") if name and name not in known]
        if wrong:
            parser.error(f"{option}: got {wrong[0]!r}; allowed: {', '.join(known)}")
    parts = _kept(arguments.results)
    for name in filter(None, arguments.parts.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.directory, prefix=".checkpoint-") as folder:
            parts[name] = {**PARTS[name](arguments, Path(folder)), "environment": environment()}
    parts = {name: parts[name] for name in PARTS if name in parts}
    summary = {key: value for part in parts.values() for key, value in part["summary"].items()}
    header, rows = ["claim", "measured"], [[_CLAIMS[key], _shown(summary[key])] for key in _CLAIMS if key in summary]
    print(table(header, rows))
    result = {
        "benchmark": "checkpoint",
        "summary": summary,
        "parts": parts,
        "settings": {
            name: str(value) for name, value in vars(arguments).items() if name not in {"json", "results", "directory"}
        },
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


_CLAIMS = {
    "step_idle_us": "manager.step() with nothing to do, us",
    **{
        key: text
        for name, size in (("200mb", "211 MB"), ("1gb", "1.0 GB"))
        for key, text in {
            f"blocking_ms_{name}": f"a save of {size} stops training for, ms",
            f"torch_save_ms_{name}": f"torch.save and fsync of {size}, ms",
            f"blocking_over_torch_save_{name}": f"stop / torch.save, {size}",
            f"slowdown_over_torch_save_{name}": f"slow-down of the steps beside it / torch.save, {size}",
            f"restore_over_torch_load_cold_{name}": f"restore / torch.load, from disk, {size}",
            f"restore_over_torch_load_warm_{name}": f"restore / torch.load, from the page cache, {size}",
            f"verified_over_load_and_hash_cold_{name}": f"verified restore / torch.load and hashing, from disk, {size}",
            f"verified_over_load_and_hash_warm_{name}": f"verified restore / torch.load and hashing, cached, {size}",
        }.items()
    },
    "durable_wall_over_dcp": "until a save of 211 MB is durable / torch's asynchronous saving (DCP)",
    "durable_processor_over_dcp": "- processor time of the same / DCP's",
    "kills": "kill -9 at a random moment",
    "kills_lost": "- of them lost a checkpoint that was reported",
    "kills_wrong": "- of them left a wrong one that was restored",
    "bit_flips": "bits flipped at random",
    "bit_flips_undetected": "- of them not noticed",
    "damages": "other damages (truncated, swapped, missing, mixed)",
    "damages_undetected": "- of them not noticed",
    "interval_gap_worst": "interval / best interval by simulation - 1, largest",
    "interval_gap_worst_young": "- the same of Young's",
    "interval_gap_worst_daly": "- the same of Daly's",
    "interval_gap_worst_availability": "- the same of the availability formula",
    "wall_beyond_best_weibull": "wall time beyond the best if losses cluster (Weibull, shape 0.7)",
    "wall_beyond_best_bursts": "wall time beyond the best if every fourth loss follows soon",
    "resume_combinations": "combinations resumed",
    "resume_mismatches": "- of them not equal bit for bit",
    "resize_mismatches_slots": "what differs after 1, 2, 4 and 1 ranks with slots",
    "resize_mismatches_ddp_samples": "samples that differ after 1, 2, 4 and 1 ranks with DDP",
    "resize_apart_ddp": "- parameters then apart by, at most",
}


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _kept(results: Path | None) -> dict[str, Any]:
    """Return the parts that an earlier run left in the file."""
    if results is None or not results.exists():
        return {}
    parts: dict[str, Any] = json.loads(results.read_text())["parts"]
    return parts


if __name__ == "__main__":
    main()
