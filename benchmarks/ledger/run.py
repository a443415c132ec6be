"""Ledgers: appends a second, replay, resident bytes a record, beside Optuna's journal storage; a sync of many writers.

    python benchmarks/ledger/run.py --json

Every number is the median of `--repeats` fresh processes with one writer on this machine's disk. "never" leaves
syncing to the system, "lifecycle" is the default policy (proposals, starts and ends are on disk before `append`
returns, reports within 5 s). Optuna's journal syncs each of its records; so the comparison of like with like is
"always". Ratios are for the same study written and opened by both (6 of our records a trial, 11 of Optuna's), above 1
where ours is better.

A sync is what a worker does to hear of the others: read what `--writers` live writers wrote, 3 records each, and fold
it, on a directory and on Redis. `least` is the number of system calls below which no reader of one file a writer can
go. An operation is a claim, an append and a read, one after the other; Redis (with its append-only file, synced every
second) runs beside it on the same machine, if it is installed.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._redis import server
from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table
from benchmarks.ledger.child import RECORDS_PER_TRIAL
from benchmarks.peers.client import python_of

__all__ = ["main"]

_ENDS = {"": "all", "_eighth": "eighth", "_none": "none"}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000, help="records of ours to replay")
    parser.add_argument("--trials", type=int, default=1000, help="trials of the study that both ledgers write")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--writers", type=int, nargs="*", default=[16, 128, 1024], help="live writers of a sync")
    parser.add_argument("--only-sync", action="store_true", help="measure the syncs of many writers, and nothing else")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.only_sync:
        return _only_sync(arguments)
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
    syncs, of_redis = _syncs(arguments, summary)
    operations = _operations(arguments.repeats, summary["skipped"])
    summary |= {f"operation_ms_{kind}": measured["median_ms"] for kind, measured in operations.items()}
    header = ["ledger", "trials", "write, ms a trial", "records/s", "replay, ms a trial", "resident bytes a trial"]
    print(table(header, rows))
    sync_table = _sync_table(syncs, of_redis)
    print(table(**sync_table))
    operation_header = ["claim + append + read", "median ms", "95 % ms"]
    operation_rows = [[kind, f"{m['median_ms']:.3f}", f"{m['p95_ms']:.3f}"] for kind, m in operations.items()]
    print(table(operation_header, operation_rows))
    result = {
        "benchmark": "ledger",
        "summary": summary,
        "detail": {
            "ours_never": unsynced,
            **{f"ours_{policy}": measured for policy, measured in ours.items()},
            "sync": syncs,
            "sync_redis": of_redis,
            "operations": operations,
        },
        "settings": {"records": records, "trials": arguments.trials, "repeats": arguments.repeats},
        "table": {"header": header, "rows": rows},
        "tables": {
            "sync": sync_table,
            "operations": {"header": operation_header, "rows": operation_rows},
        },
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _only_sync(arguments: argparse.Namespace) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    syncs, of_redis = _syncs(arguments, summary)
    found = _sync_table(syncs, of_redis)
    print(table(**found))
    result = {
        "benchmark": "ledger",
        "summary": summary,
        "detail": {"sync": syncs, "sync_redis": of_redis},
        "settings": {"writers": arguments.writers, "repeats": arguments.repeats},
        "table": found,
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _syncs(
    arguments: argparse.Namespace, summary: dict[str, Any]
) -> tuple[dict[int, dict[str, float]], dict[int, dict[str, float]]]:
    """Measure on directories and on Redis, if that is there, and enter the numbers."""
    syncs = {n: _median(arguments.repeats, "sync", "directory", "{path}", str(n)) for n in arguments.writers}
    of_redis = _syncs_of_redis(arguments)
    for prefix, measurements in (("sync", syncs), ("redis_sync", of_redis)):
        for writers, measured in measurements.items():
            summary |= {f"{prefix}_ms_{writers}{end}": measured[f"ms_{word}"] for end, word in _ENDS.items()}
            summary[f"{prefix}_us_a_record_{writers}"] = measured["us_a_record"]
    for writers, measured in syncs.items():
        summary[f"sync_calls_{writers}"] = measured["calls_all"]
        summary[f"sync_least_calls_{writers}"] = measured["least_all"]
    return syncs, of_redis


def _sync_table(syncs: dict[int, dict[str, float]], of_redis: dict[int, dict[str, float]]) -> dict[str, Any]:
    rows = [_sync_row(f"{writers:,}", measured) for writers, measured in syncs.items()]
    rows += [_sync_row(f"{writers:,}, Redis", measured) for writers, measured in of_redis.items()]
    header = ["live writers", "3 records of each, ms", "system calls (least)", "of an eighth, ms", "nothing new, ms"]
    return {"header": header, "rows": rows}


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


def _median(repeats: int, *command: str) -> dict[str, float]:
    """Run `benchmarks.ledger.many` in fresh processes, each with a {path} and {number} of its own; medians."""
    found = []
    for repeat in range(repeats):
        with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder:
            arguments = [word.format(path=f"{folder}/ledger", number=repeat) for word in command]
            found.append(_child(sys.executable, *arguments, module="many"))
        progress(f"{' '.join(command[:2])} {command[-1]}, {repeat + 1} of {repeats}")
    return {name: statistics.median([one[name] for one in found]) for name in found[0]}


def _operations(repeats: int, skipped: dict[str, str]) -> dict[str, dict[str, float]]:
    found = {kind: _median(repeats, "operations", kind, "{path}") for kind in ("memory", "directory")}
    if not _has_redis():
        skipped["redis"] = (
            "no redis-server, or no redis-py; apt-get install redis-server, pip install trainwright[redis]"
        )
        return found
    with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder, server(folder) as address:
        found["redis"] = _median(repeats, "operations", "redis", f"{address}/0?study=study-{{number}}")
    return found


def _has_redis() -> bool:
    return shutil.which("redis-server") is not None and find_spec("redis") is not None


def _syncs_of_redis(arguments: argparse.Namespace) -> dict[int, dict[str, float]]:
    if not _has_redis():
        return {}
    with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder, server(folder) as address:
        return {
            n: _median(arguments.repeats, "sync", "redis", f"{address}/0?study=sync-{n}-{{number}}", str(n))
            for n in arguments.writers
        }


def _sync_row(name: str, measured: dict[str, float]) -> list[str]:
    calls = f"{measured['calls_all']:,.0f} ({measured['least_all']:,.0f})" if "calls_all" in measured else ""
    times = [f"{measured[name]:.2f}" for name in ("ms_all", "ms_eighth", "ms_none")]
    return [name, times[0], calls, *times[1:]]


def _child(python: str, *arguments: str, module: str = "child") -> dict[str, float]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    answer = subprocess.run(
        [python, "-W", "ignore", "-m", f"benchmarks.ledger.{module}", *arguments],
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
