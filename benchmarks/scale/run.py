"""64 real processes on one study, beside Optuna: what a trial costs, on journals and on Redis.

    python benchmarks/scale/run.py --json

They share 1,280 trials that sleep 50 ms, with each system's default sampler and with random proposals. On so few cores
the processors are what is short, so throughput tells what a trial costs beside the training; processor seconds a trial
are given too (of the workers; the Redis server's are left out). Trials of 2 s show utilisation where the processors
suffice. The start of the processes is left out. More processes, and simulated ones: `many.py`.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._redis import server
from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table
from benchmarks.peers.client import python_of

__all__ = ["main"]

_DEFAULTS = {"ours": "default", "optuna": "tpe"}
_SLOW_SECONDS, _SLOW_EACH = 2.0, 5


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=64, help="real workers")
    parser.add_argument("--trials", type=int, default=1280, help="trials that they share")
    parser.add_argument("--sleep", type=float, default=0.05, metavar="SECONDS", help="how long a trial sleeps")
    parser.add_argument("--repeats", type=int, default=3, help="teams of each kind, taken in turn")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    summary: dict[str, Any] = {"skipped": {}}
    teams = _teams(arguments, summary)
    rows = [_row(name, found) for name, found in teams.items()]
    header = ["team", "trials/s", "processor ms a trial", "utilisation"]
    print(table(header, rows))
    result = {
        "benchmark": "scale",
        "summary": summary,
        "detail": {"teams": teams},
        "settings": {name: value for name, value in vars(arguments).items() if name not in {"json", "results"}},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


@dataclass(frozen=True, kw_only=True)
class Team:
    """Processes of one system that share trials of so many seconds, on one kind of store."""

    system: str
    store: str
    sampler: str
    processes: int
    trials: int
    sleep: float

    @property
    def name(self) -> str:
        """As it is in the table."""
        return f"{self.system}, {self.store}, {self.sampler}, {self.sleep:g} s"

    def run(self) -> dict[str, float]:
        """Let them work on a new study, and return what they told."""
        with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder:
            if self.store == "journal":
                return self._run(f"{folder}/study")
            with server(folder) as address:
                return self._run(f"{address}/0?study=scale" if self.system == "ours" else f"{address}/0")

    def _run(self, where: str) -> dict[str, float]:
        python = sys.executable if self.system == "ours" else str(python_of("optuna"))
        words = [self.system, self.sampler, where, str(self.processes), str(self.trials), str(self.sleep)]
        answer = subprocess.run(
            [python, "-W", "ignore", "-m", "benchmarks.scale.team", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            stdout=subprocess.PIPE,
            check=True,
        )
        found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
        if found["trials"] != self.trials:
            raise SystemExit(f"{self.name}: {found['trials']} trials ran, {self.trials} were to")
        return found


def _teams(arguments: argparse.Namespace, summary: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Run the teams in turn, and enter the ratios."""
    systems, stores = ["ours"], ["journal"]
    if python_of("optuna").exists():
        systems.append("optuna")
    else:
        summary["skipped"]["optuna"] = "no .peers/optuna; `make peers` installs it"
    if shutil.which("redis-server") is None or find_spec("redis") is None:
        summary["skipped"]["redis"] = "no redis-server, or no redis-py; apt-get install redis-server"
    else:
        stores.append("redis")

    def team(system: str, store: str, sampler: str, trials: int, sleep: float) -> Team:
        chosen = _DEFAULTS[system] if sampler == "default" else sampler
        return Team(
            system=system, store=store, sampler=chosen, processes=arguments.processes, trials=trials, sleep=sleep
        )

    pairs = {
        (store, sampler): [team(system, store, sampler, arguments.trials, arguments.sleep) for system in systems]
        for store in stores
        for sampler in ("default", "random")
    }
    few = arguments.processes * _SLOW_EACH
    slow = [team(system, "journal", "default", few, _SLOW_SECONDS) for system in systems]
    runs: dict[str, list[dict[str, float]]] = {}
    for repeat in range(arguments.repeats):
        for one in [*itertools.chain(*pairs.values()), *slow]:
            found = one.run()
            runs.setdefault(one.name, []).append(found)
            progress(f"{repeat + 1} of {arguments.repeats}: {one.name}: {one.trials / found['seconds']:.1f} trials/s")
    middle = {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]} for name, found in runs.items()
    }
    for (store, sampler), both in pairs.items():
        if len(both) == len(_DEFAULTS):
            ours, theirs = (middle[one.name] for one in both)
            suffix = store if sampler == "default" else f"{store}_{sampler}"
            summary[f"throughput_over_optuna_{suffix}"] = theirs["seconds"] / ours["seconds"]
            summary[f"processor_ratio_to_optuna_{suffix}"] = theirs["processor_seconds"] / ours["processor_seconds"]
    for one in slow:
        summary[f"utilisation_real_{arguments.processes}_{one.system}"] = middle[one.name]["utilisation"]
    return middle


def _row(name: str, found: dict[str, float]) -> list[str]:
    trials = found["trials"]
    return [
        name,
        f"{trials / found['seconds']:.1f}",
        f"{1e3 * found['processor_seconds'] / trials:.1f}",
        f"{100 * found['utilisation']:.1f} %",
    ]


if __name__ == "__main__":
    main()
