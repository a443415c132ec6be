"""Hundreds of real processes on one study, and how many of them the processors can bear.

    python benchmarks/scale/many.py --json
    python benchmarks/scale/many.py --teams 64:2:5,512:20:4 --stores journal --kills 20

A team `N:S:K` is N processes, each with K trials that sleep S seconds and then give Ackley's function. Utilisation is
the share of their time up to the last start in which they slept; the rest went to the start of the processes, all at
once, and to what a worker does between two trials. `once started` leaves the start out. `demand` is how many cores the
team kept busy of those that there are: beyond them no utilisation is to be had, whatever the trials do. The last team
is killed at: members die by SIGKILL at random, others replace them; lost are trials without a result, doubled
those with two.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._redis import server
from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table

__all__ = ["main"]

_SEARCHERS = ("default", "forest", "random")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teams", default="16:2:10,64:2:10,128:2:10,512:20:4", metavar="N:S:K,...")
    parser.add_argument("--stores", default="journal,redis")
    parser.add_argument("--searcher", default="default", choices=_SEARCHERS)
    parser.add_argument("--kills", default="64:2:5:16", metavar="N:S:K:KILLS", help="the team that is killed at")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    cores = os.cpu_count() or 1
    summary: dict[str, Any] = {"skipped": {}}
    rows = []
    for store in arguments.stores.split(","):
        if store == "redis" and (shutil.which("redis-server") is None or find_spec("redis") is None):
            summary["skipped"]["redis"] = "no redis-server, or no redis-py; apt-get install redis-server"
            continue
        for text in arguments.teams.split(","):
            workers, seconds, each = (int(word) for word in text.split(":"))
            found = _team(store, arguments.searcher, workers, workers * each, seconds)
            demand = found["processor_seconds"] / found["seconds"]
            team = f"{store}_{workers}_{seconds}s"
            summary[f"utilisation_{team}"] = found["utilisation"]
            summary[f"utilisation_once_started_{team}"] = found["utilisation_once_started"]
            rows.append([
                store, f"{workers:,}", f"{seconds}", f"{100 * found['utilisation']:.1f} %",
                f"{100 * found['utilisation_once_started']:.1f} %", f"{found['start_seconds']:.2f}",
                f"{1e3 * found['between_seconds']:.0f}",
                f"{1e3 * found['processor_seconds'] / found['trials']:.1f}", f"{demand:.2f} of {cores}",
                f"{found['megabytes']:.0f}",
            ])  # fmt: skip
            progress(" | ".join(rows[-1]))
        workers, seconds, each, kills = (int(word) for word in arguments.kills.split(":"))
        found = _team(store, arguments.searcher, workers, workers * each, seconds, kills)
        summary |= {f"{name}_{store}": found[name] for name in ("kills", "lost", "doubled")}
        progress(f"{store}, killed at: {found}")
    header = [
        "store",
        "workers",
        "seconds",
        "utilisation",
        "once started",
        "seconds to start",
        "ms between trials",
        "processor ms a trial",
        "cores busy",
        "MB each",
    ]
    result = {
        "benchmark": "scale_many",
        "summary": summary,
        "settings": {name: value for name, value in vars(arguments).items() if name not in {"json", "results"}},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    print(table(header, rows))
    finish(result, arguments)
    return result


def _team(store: str, searcher: str, workers: int, trials: int, seconds: float, *kills: int) -> dict[str, float]:
    """Let a team work on a new study, and return what it told."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "benchmarks"))
        where = f"{folder}/study"
        if store == "redis":
            where = f"{stack.enter_context(server(folder))}/0?study=scale"
        words = ["ours", searcher, where, *map(str, (workers, trials, seconds, *kills))]
        answer = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.scale.team", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            stdout=subprocess.PIPE,
            check=True,
        )
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    if found["trials"] != trials:
        raise SystemExit(f"{workers} processes, {store}: {found['trials']} trials have a result, {trials} were to")
    return found


if __name__ == "__main__":
    main()
