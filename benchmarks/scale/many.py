"""Hundreds of real processes on one study, what the simulator makes of them, and how many the processors can bear.

    python benchmarks/scale/many.py --json
    python benchmarks/scale/many.py --teams 64:2:5,512:20:4 --stores journal --kills 20

A team `N:S:K` is N processes, each with K trials that sleep S seconds and then give Ackley's function. Utilisation is
the share of their time up to the last start in which they slept. What the ledger costs a trial is measured first, one
process alone, on the same file system or server; from it `tw.Simulated` has the utilisation with the cores of this
machine, and, for the rows without a measured one, with a core for each worker. `demand` is how many cores the team kept
busy of those that there are: beyond them no utilisation is to be had, whatever the trials do. The last team is killed
at: members die by SIGKILL at random and are replaced; lost are trials without a result, doubled those with two.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._redis import server
from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table
from benchmarks.scale.simulate import measure, utilisation

import trainwright as tw

__all__ = ["main"]

_SEARCHERS = {"forest": tw.ForestSearcher(), "random": tw.RandomSearcher()}
_LARGE = (1920, 10_000)
_EACH, _SECONDS, _SPREAD = 10, 60.0, 0.25  # trials of a simulated team: how many for each worker, and how long
_NONE = 1e-9


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teams", default="16:2:10,64:2:10,128:2:10,512:20:4", metavar="N:S:K,...")
    parser.add_argument("--stores", default="journal,redis")
    parser.add_argument("--searcher", default="forest", choices=_SEARCHERS)
    parser.add_argument("--kills", default="64:2:5:16", metavar="N:S:K:KILLS", help="the team that is killed at")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    cores = os.cpu_count() or 1
    summary: dict[str, Any] = {"skipped": {}}
    costs: dict[str, Any] = {}
    rows = []
    for store in arguments.stores.split(","):
        if store == "redis" and (shutil.which("redis-server") is None or find_spec("redis") is None):
            summary["skipped"]["redis"] = "no redis-server, or no redis-py; apt-get install redis-server"
            continue
        cost = _measure(store, arguments.searcher)
        costs[store] = {name: getattr(cost, name) for name in cost.__dataclass_fields__}
        progress(f"{store}: {cost}")
        for text in arguments.teams.split(","):
            workers, seconds, each = (int(word) for word in text.split(":"))
            found = _team(store, arguments.searcher, workers, workers * each, seconds)
            made = utilisation(
                replace(cost, cores=cores), workers, trials=workers * each, seconds=seconds, spread=_NONE, seed=0
            )
            demand = found["processor_seconds"] / found["seconds"]
            summary[f"utilisation_{store}_{workers}_{seconds}s"] = found["utilisation"]
            summary[f"simulated_{store}_{workers}_{seconds}s"] = made
            rows.append([
                store, f"{workers:,}", f"{seconds}", f"{100 * found['utilisation']:.1f} %", f"{100 * made:.1f} %",
                f"{1e3 * found['processor_seconds'] / found['trials']:.1f}", f"{demand:.2f} of {cores}",
                f"{found['megabytes']:.0f}",
            ])  # fmt: skip
            progress(" | ".join(rows[-1]))
        for workers in _LARGE:
            made = utilisation(cost, workers, trials=_EACH * workers, seconds=_SECONDS, spread=_SPREAD, seed=0)
            summary[f"simulated_{store}_{workers}"] = made
            rows.append([store, f"{workers:,}", f"{_SECONDS:.0f}", "", f"{100 * made:.1f} %", "", "1 each", ""])
        workers, seconds, each, kills = (int(word) for word in arguments.kills.split(":"))
        found = _team(store, arguments.searcher, workers, workers * each, seconds, kills)
        summary |= {f"{name}_{store}": found[name] for name in ("kills", "lost", "doubled")}
        progress(f"{store}, killed at: {found}")
    header = [
        "store",
        "workers",
        "seconds",
        "utilisation",
        "simulated",
        "processor ms a trial",
        "cores busy",
        "MB each",
    ]
    result = {
        "benchmark": "scale_many",
        "summary": summary,
        "detail": {"costs": costs},
        "settings": {name: value for name, value in vars(arguments).items() if name not in {"json", "results"}},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    print(table(header, rows))
    finish(result, arguments)
    return result


def _measure(store: str, searcher: str) -> tw.LedgerCost:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "benchmarks"))
        if store == "journal":
            return measure(_SEARCHERS[searcher], lambda name: {"directory": f"{folder}/{name}"})
        address = stack.enter_context(server(folder))
        return measure(_SEARCHERS[searcher], lambda name: {"ledger": f"{address}/0?study={name}"})


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
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            stdout=subprocess.PIPE,
            check=True,
        )
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    if found["trials"] != trials:
        raise SystemExit(f"{workers} processes, {store}: {found['trials']} trials have a result, {trials} were to")
    return found


if __name__ == "__main__":
    main()
