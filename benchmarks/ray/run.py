"""What a trial and a report cost on Ray: our engine beside Ray Tune, on the same trivial trials in the same run.

    python benchmarks/ray/run.py --json

Each side is a process of its own that starts a Ray cluster of two logical CPUs, then takes random proposals for 1,000
trials of one report each; ours keeps them in a ledger in a directory. Ray Tune is set as it was fastest in trials: its
actors are reused, its loggers of files for each trial are off. The sides take turns. The cost of a report is what a
trial of many waits from the first to the last, two trials at a time; on both sides it goes on once the driver has
judged the report, which ours has written to the ledger by then.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table
from benchmarks.peers.client import python_of

__all__ = ["main"]

_DEVICES, _FEW = 2, 4
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000, help="trials of one report each")
    parser.add_argument("--reports", type=int, default=500, help=f"reports of each of {_FEW} trials")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side, taken in turn")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    summary: dict[str, Any] = {"skipped": {}}
    systems = ["ours", "tune"]
    if not python_of("ray-tune").exists():
        summary["skipped"]["ray-tune"] = "no .peers/ray-tune; `make peers` installs it"
        systems.remove("tune")
    runs: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
    for repeat in range(arguments.repeats):
        for system in systems:
            found = _measure(system, arguments.trials, arguments.reports)
            runs[system].append(found)
            progress(
                f"{repeat + 1} of {arguments.repeats}: {system}: {found['trials_per_second']:.1f} trials/s, "
                f"{found['report_ms']:.2f} ms a report"
            )
    for system in systems:
        for measure in ("trials_per_second", "report_ms"):
            summary[f"{measure}_{system}"] = statistics.median(run[measure] for run in runs[system])
    if len(systems) == 2:
        pairs = list(zip(runs["ours"], runs["tune"], strict=True))
        ratios = [ours["trials_per_second"] / theirs["trials_per_second"] for ours, theirs in pairs]
        summary["ray_over_ray_tune_trials_per_second"] = statistics.median(ratios)
        summary["ray_over_ray_tune_trials_per_second_least"] = min(ratios)
        summary["ray_tune_over_ray_report_ms"] = statistics.median(
            theirs["report_ms"] / ours["report_ms"] for ours, theirs in pairs
        )
    header = ["engine", "trials/s", "ms a report"]
    names = {"ours": "trainwright, Ray", "tune": "Ray Tune"}
    rows = [
        [names[system], f"{summary[f'trials_per_second_{system}']:.1f}", f"{summary[f'report_ms_{system}']:.2f}"]
        for system in systems
    ]
    print(table(header, rows))
    result = {
        "benchmark": "ray",
        "summary": summary,
        "detail": runs,
        "settings": {
            "devices": _DEVICES,
            **{name: getattr(arguments, name) for name in ("trials", "reports", "repeats")},
        },
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _measure(system: str, trials: int, reports: int) -> dict[str, float]:
    many = _run(system, trials, 1)
    long = _run(system, _FEW, reports)
    return {"trials_per_second": trials / many["seconds"], "report_ms": 1e3 * long["span"] / (reports - 1)}


def _run(system: str, trials: int, reports: int) -> dict[str, float]:
    python = sys.executable if system == "ours" else str(python_of("ray-tune"))
    words = [system, str(trials), str(reports), str(_DEVICES)]
    answer = subprocess.run(
        [python, "-W", "ignore", "-m", "benchmarks.ray.child", *words],
        cwd=ROOT,
        env={**os.environ, **_ENVIRONMENT},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    if (found["trials"], found["reports"]) != (trials, trials * reports):
        raise SystemExit(f"{system}: {found}, where {trials} trials of {reports} reports were to run")
    return found


if __name__ == "__main__":
    main()
