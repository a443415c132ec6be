"""What every benchmark shares: the environment's facts, the table on the terminal, the kept result, the last line."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = [
    "RESULTS",
    "add_arguments",
    "environment",
    "finish",
    "finish_table",
    "mean_and_interval",
    "progress",
    "table",
]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_FEWEST = 2  # values of which there is a spread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two options that all benchmarks have."""
    parser.add_argument(
        "--json", action="store_true", help="end with one line of JSON whose `summary` holds the numbers"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the result as JSON in FILE")


def environment() -> dict[str, Any]:
    """Name what a number depends on beside the code: machine, Python, libraries, revision."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in ("numpy", "scipy", "numba", "torch") if (version := _version(name))},
        "revision": _revision(),
    }


def finish(result: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Keep the result if asked, and end with its line if asked."""
    if arguments.results is not None:
        arguments.results.parent.mkdir(parents=True, exist_ok=True)
        arguments.results.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(result))


def finish_table(
    name: str,
    arguments: argparse.Namespace,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    summary: Mapping[str, float],
    **settings: object,
) -> dict[str, Any]:
    """Print a benchmark's table, and keep it with the numbers of its summary and the settings by which it ran."""
    print(table(header, rows))
    result = {
        "benchmark": name,
        "environment": environment(),
        **settings,
        "summary": summary,
        "table": {"header": header, "rows": rows},
    }
    finish(result, arguments)
    return result


def progress(text: str) -> None:
    """Say what goes on, on the error stream."""
    print(text, file=sys.stderr, flush=True)


def mean_and_interval(values: Sequence[float]) -> str:
    """Return a mean and, of two values or more, half of its 95 % interval by Student's t."""
    from scipy.stats import t

    mean = statistics.mean(values)
    if len(values) < _FEWEST:
        return f"{mean:.3f}"
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.3f} ± {half:.3f}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Set a table in Markdown, which reads well on a terminal too; the first column is left, the others right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([line(cells[0]), rule, *(line(row) for row in cells[1:])])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty"],  # noqa: S607  git is found on the path, as everywhere
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return answer.stdout.strip() or None
