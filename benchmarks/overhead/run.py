"""What Trainwright costs beside the training: driver time per trial of the local engine, and the import.

    python benchmarks/overhead/run.py --json

Two workers, random search, a directory ledger. Times per trial are slopes between a run of few and a run of many
trials, so that starting the workers is left out (it is given apart). `driver_ms` is the driver's processor time;
`idle_ms` is how long a slot waits per trial beyond the objective's own 10 ms.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table
from benchmarks.overhead.objectives import SLEEP_SECONDS, nothing, sleeping

__all__ = ["main"]

WORKERS = 2
FEW = 20
HEAVY = ("torch", "ray", "numba", "scipy", "numpy")

_IMPORT = f"""
import time; start = time.perf_counter(); import trainwright; seconds = time.perf_counter() - start
import json, sys; print(json.dumps([seconds, [name for name in {HEAVY} if name in sys.modules]]))
"""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200, help="trials between the short run and the long run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each length, of which the fastest counts")
    add_arguments(parser)
    arguments = parser.parse_args(argv)

    seconds, heavy = _import_seconds(10)
    summary: dict[str, Any] = {"import_seconds": seconds, "import_pulls": heavy}
    progress(f"import: {seconds:.3f} s")
    for name, train, own_seconds in (("trivial", nothing, 0.0), ("sleep_10ms", sleeping, SLEEP_SECONDS)):
        short, long = (
            [min(times) for times in zip(*(_run(train, trials) for _ in range(arguments.repeats)), strict=True)]
            for trials in (FEW, FEW + arguments.trials)
        )
        wall, driver = ((b - a) / arguments.trials for a, b in zip(short, long, strict=True))
        summary[f"{name}_wall_ms"] = 1e3 * wall
        summary[f"{name}_driver_ms"] = 1e3 * driver
        summary[f"{name}_idle_ms"] = 1e3 * (wall * WORKERS - own_seconds)
        summary["start_seconds"] = max(0.0, short[0] - FEW * wall)
        progress(f"{name}: {1e3 * wall:.2f} ms of wall time, {1e3 * driver:.2f} ms of the driver per trial")
    rows = [
        [name, *(f"{summary[f'{name}_{measure}_ms']:.2f}" for measure in ("wall", "driver", "idle"))]
        for name in ("trivial", "sleep_10ms")
    ]
    header = ["objective", "wall ms per trial", "driver ms per trial", "slot ms beyond the objective"]
    print(table(header, rows))
    print(f"import trainwright: {seconds:.3f} s; start of the workers: {summary['start_seconds']:.2f} s")
    result = {
        "benchmark": "overhead",
        "summary": summary,
        "settings": {"workers": WORKERS, "trials": arguments.trials, "repeats": arguments.repeats},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _run(train: Callable[[Any], None], trials: int) -> tuple[float, float]:
    """Wall seconds and the driver's processor seconds of one study."""
    import trainwright as tw

    with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder:
        study = tw.Study(
            tw.Space(x=tw.Float(0.0, 1.0)), objectives="min loss", directory=Path(folder) / "study", seed=0
        )
        wall, driver = time.perf_counter(), time.process_time()
        study.run(train, trials=trials, searcher=tw.RandomSearcher(), engine=tw.Local(workers=WORKERS), progress=False)
        return time.perf_counter() - wall, time.process_time() - driver


def _import_seconds(repeats: int) -> tuple[float, list[str]]:
    """Median over fresh interpreters, and which heavy packages the import pulled in."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    answers = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", _IMPORT],
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
        )
        for _ in range(repeats)
    ]
    return statistics.median(seconds for seconds, _ in answers), answers[0][1]


if __name__ == "__main__":
    main()
