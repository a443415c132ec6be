"""Serving an ensemble: what the service costs beside a bare loop and its peers, and whether it is ever wrong.

    python benchmarks/serve/run.py --parts overhead,faults --json

With `--results FILE` the parts that the file has and that are not run now are kept, so that long parts can be run
apart: the summary and the table are of all of them.

Each file beside this one that has a function `run(options)` is a part; it returns a mapping with a `summary` (numbers
by name), perhaps `lines` for the end of the table, and whatever else is worth keeping. Counts (whole numbers) that
several parts give are added, such as `wrong_answers`; any other name belongs to one part. A part that needs what is not
installed says so under `missing`.
"""

import argparse
import ast
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import add_arguments, environment, finish, progress

__all__ = ["main"]


_WORDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "overhead_percent_128": ("the service beyond a bare loop over its members, batches of 128", "{:+.1f} %".format),
    "member_ms": ("- where the fastest member's batch takes", "{:.1f} ms".format),
    "overhead_http_percent_128": ("- the same over HTTP, binary tensors", "{:+.1f} %".format),
    "overhead_http_json_percent_128": ("- the same over HTTP, JSON", "{:+.0f} %".format),
    "least_over_loop": ("rows a second of the default plan over a plain loop's, least of all", "{:.2f}".format),
    "cells_over_loop": ("- ensembles, loads, rows and clients compared", str),
    "cells_below_loop": ("- of them below 0.9", str),
    "throughput_over_fastapi": ("requests a second beside plain FastAPI, mean over clients", "{:.2f} x".format),
    "throughput_over_ray_serve": ("requests a second beside Ray Serve, mean over clients", "{:.1f} x".format),
    "http_long_p99_ms": ("- p99 at 80 % of what it can do over HTTP, open loop", "{:.0f} ms".format),
    "http_long_memory_growth_percent": ("growth of memory over HTTP, at 80 % of what it can do", "{:+.1f} %".format),
    "memory_growth_percent": ("growth of memory in process, at 80 % of what it can do", "{:+.1f} %".format),
    "endurance_minutes": ("- minutes that this lasted", "{:.0f}".format),
    "endurance_p99_ms": ("- p99", "{:.0f} ms".format),
    "worst_gap": ("allocation: furthest below brute force, of 20 small cases of each size", "{:.1%}".format),
    "seconds_12_on_4": ("- 12 members on 4 simulated devices", "{:.2f} s".format),
    "median_gain_over_batch_only": (
        "- gain over tuning batch sizes alone, median of simulated sets",
        "{:.1f} x".format,
    ),
    "requests_under_faults": ("requests while workers were killed", "{:,}".format),
    "kills": ("- kill -9 of workers", str),
    "storm_kills": ("kill -9 of workers as fast as they restart", "{:,}".format),
    "storm_requests": ("- requests meanwhile that were answered rightly, by all members", "{:,}".format),
    "storm_not_once": ("- wrong, lost, degraded or counted twice", str),
    "malformed_requests": ("malformed requests", "{:,}".format),
    "server_errors_on_malformed": ("- of them answered as an error of the server", str),
    "wrong_answers": ("wrong answers", str),
    "lost_requests": ("lost requests", str),
    "shared_memory_left": ("segments of shared memory left", str),
}
"""What the table says of the numbers of the summary, in this order."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the parts and print."""
    parts = _parts()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(parts), help=f"which to run, of {', '.join(parts)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement that lasts by the clock")
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement that is repeated")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs; no figures")
    add_arguments(parser)
    options = parser.parse_args(argv)
    chosen = options.parts.split(",")
    if unknown := sorted(set(chosen) - set(parts)):
        parser.error(f"--parts: got {unknown[0]!r}; allowed: {', '.join(parts)}")

    settings = {name: getattr(options, name) for name in ("seed", "seconds", "repeats", "quick")}
    results: dict[str, Any] = _kept(options.results)
    for part in chosen:
        progress(f"{part}:")
        found = importlib.import_module(f"benchmarks.serve.{parts[part]}").run(options)
        results[part] = {**found, "settings": {**found.get("settings", {}), **settings}, "environment": environment()}
    summary: dict[str, Any] = {}
    for part in sorted(results):
        _merge(summary, results[part]["summary"], part)
    for name, value in summary.items():
        print(f"{name}: {value}")
    result = {
        "benchmark": "serve",
        "summary": summary,
        "settings": settings,
        "parts": results,
        "table": {
            "header": ["serving", "measured"],
            "rows": [
                *([words, form(summary[name])] for name, (words, form) in _WORDS.items() if name in _told(summary)),
                *(line for part in results.values() for line in part.get("lines", ())),
            ],
        },
        "environment": environment(),
    }
    finish(result, options)
    return result


def _told(summary: Mapping[str, Any]) -> set[str]:
    """Return the figures to tell: no latency of a load that its generator could not keep up with."""
    late = {"http_long_p99_ms"} if not summary.get("http_long_valid", True) else set()
    return summary.keys() - late


def _kept(file: Path | None) -> dict[str, Any]:
    """Return the parts of an earlier run that a file holds."""
    if file is None or not file.exists():
        return {}
    kept: dict[str, Any] = json.loads(file.read_text())["parts"]
    return kept


def _parts() -> dict[str, str]:
    """Name the files here that have a function `run`: {part: module}."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        functions = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        if path.name != Path(__file__).name and "run" in functions:
            found[path.stem.lstrip("_")] = path.stem
    return found


def _merge(summary: dict[str, Any], found: Mapping[str, Any], part: str) -> None:
    for name, value in found.items():
        if name not in summary:
            summary[name] = value
        elif type(value) is int and type(summary[name]) is int:
            summary[name] += value
        else:
            raise SystemExit(
                f"{part}: {name} is given by another part too; allowed: for whole numbers, which are added"
            )


if __name__ == "__main__":
    main()
