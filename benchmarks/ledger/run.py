"""The directory ledger: appends a second, replay, resident bytes a record; beside Optuna's journal storage.

    python benchmarks/ledger/run.py --json

Every number is the median of `--repeats` fresh processes with one writer on this machine's disk. "never" leaves
syncing to the system, "lifecycle" is the default policy (proposals, starts and ends are on disk before `append`
returns, reports within 5 s). Optuna's journal syncs each of its records; so the comparison of like with like is
"always". Ratios are for the same study written and opened by both (6 of our records a trial, 11 of Optuna's), above 1
where ours is better.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table
from benchmarks.ledger.child import RECORDS_PER_TRIAL
from benchmarks.peers.client import python_of

__all__ = ["main"]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000, help="records of ours to replay")
    parser.add_argument("--trials", type=int, default=1000, help="trials of the study that both ledgers write")
    parser.add_argument("--repeats", type=int, default=3)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    many = -(-arguments.records // RECORDS_PER_TRIAL["own"])
    records = many * RECORDS_PER_TRIAL["own"]

    unsynced = _measure("own", many, arguments.repeats, "never")
    ours = {policy: _measure("own", arguments.trials, arguments.repeats, policy) for policy in ("lifecycle", "always")}
    summary: dict[str, Any] = {
        "appends_per_second_unsynced": records / unsynced["write_seconds"],
        "appends_per_second_default": arguments.trials * RECORDS_PER_TRIAL["own"] / ours["lifecycle"]["write_seconds"],
        "appends_per_second_always": arguments.trials * RECORDS_PER_TRIAL["own"] / ours["always"]["write_seconds"],
        "replay_seconds_100000": unsynced["replay_seconds"] * 100_000 / records,
        "resident_bytes_per_record": unsynced["resident_bytes"] / records,
        "resident_bytes_per_trial": unsynced["resident_bytes"] / many,
        "skipped": {},
    }
    rows = [_row(f"ours, never, {many} trials", many, unsynced)]
    rows += [_row(f"ours, {policy}", arguments.trials, measured) for policy, measured in ours.items()]
    if python_of("optuna").exists():
        theirs = _measure("optuna", arguments.trials, arguments.repeats)
        rows.append(_row("Optuna's journal", arguments.trials, theirs))
        summary["write_ratio_to_optuna_default"] = theirs["write_seconds"] / ours["lifecycle"]["write_seconds"]
        summary["write_ratio_to_optuna_always"] = theirs["write_seconds"] / ours["always"]["write_seconds"]
        summary["replay_ratio_to_optuna"] = theirs["replay_seconds"] / ours["lifecycle"]["replay_seconds"]
        summary["memory_ratio_to_optuna"] = theirs["resident_bytes"] / ours["lifecycle"]["resident_bytes"]
    else:
        summary["skipped"]["optuna"] = "no .peers/optuna; `make peers` installs it"
    header = ["ledger", "trials", "write, ms a trial", "records/s", "replay, ms a trial", "resident bytes a trial"]
    print(table(header, rows))
    result = {
        "benchmark": "ledger",
        "summary": summary,
        "detail": {"ours_never": unsynced, **{f"ours_{policy}": measured for policy, measured in ours.items()}},
        "settings": {"records": records, "trials": arguments.trials, "repeats": arguments.repeats},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _measure(kind: str, trials: int, repeats: int, *policy: str) -> dict[str, float]:
    """Write and replay in fresh processes; medians."""
    python = str(python_of("optuna" if kind == "optuna" else ""))
    found: dict[str, list[float]] = {"write_seconds": [], "replay_seconds": [], "resident_bytes": []}
    for repeat in range(repeats):
        # Beside the results, not in /tmp, which may be memory: a sync must reach a disk.
        with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder:
            path = str(Path(folder) / "ledger")
            found["write_seconds"].append(_child(python, "write", kind, path, str(trials), *policy)["seconds"])
            replayed = _child(python, "replay", kind, path)
            found["replay_seconds"].append(replayed["seconds"])
            found["resident_bytes"].append(replayed["resident_bytes"])
        progress(f"{kind} {' '.join(policy)} {trials} trials, repeat {repeat + 1} of {repeats}")
    return {name: statistics.median(values) for name, values in found.items()} | {
        "records": trials * RECORDS_PER_TRIAL[kind]
    }


def _child(python: str, *arguments: str) -> dict[str, float]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    answer = subprocess.run(
        [python, "-W", "ignore", "-m", "benchmarks.ledger.child", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    numbers: dict[str, float] = json.loads(answer.stdout)
    return numbers


def _row(name: str, trials: int, measured: dict[str, float]) -> list[str]:
    return [
        name,
        str(trials),
        f"{1e3 * measured['write_seconds'] / trials:.3f}",
        f"{measured['records'] / measured['write_seconds']:,.0f}",
        f"{1e3 * measured['replay_seconds'] / trials:.3f}",
        f"{measured['resident_bytes'] / trials:,.0f}",
    ]


if __name__ == "__main__":
    main()
