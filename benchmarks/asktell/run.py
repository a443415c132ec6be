"""Speed of one ask + tell after n observations: our searchers beside Optuna's and DeepHyper, one thread each.

    python benchmarks/asktell/run.py --json

The space has 10 columns: 6 float, 2 log float, 1 int, 1 choice of 5. Each search is told n - 50 finished trials in the
cheapest way that it has; then 50 pairs of ask and tell are timed inside its own process, which was warmed up by a small
search before. Of `--repeats` such runs the one with the least median counts, since other work on the machine only ever
adds. `batch_1000_ms_at_10000` is one question for 1,000 proposals, the least of three. `_directory` and `_journal` are
the same with a ledger, or Optuna's journal, on disk. `_busy` has as many threads as it takes by itself, while each core
computes something else, as where workers train.
"""

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table
from benchmarks.peers.client import Peer, missing
from benchmarks.peers.columns import Column

__all__ = ["COLUMNS", "main"]

COLUMNS = (
    *(Column(name=f"float{i}", kind="float", low=0.0, high=1.0) for i in range(6)),
    *(Column(name=f"log{i}", kind="log_float", low=1e-5, high=1e-1) for i in range(2)),
    Column(name="int", kind="int", low=1, high=64),
    Column(name="choice", kind="choice", values=("a", "b", "c", "d", "e")),
)


_BATCH = 1000


class _Case(NamedTuple):
    """What is measured: a searcher, where it keeps its trials, at which counts, by how many pairs."""

    searcher: str
    counts: tuple[int, ...]
    storage: str = ""
    pairs: int = 50
    batch: tuple[int, ...] = ()  # counts after which as many proposals as _BATCH are asked at once
    repeats: int | None = None  # if not those of the command line
    busy: bool = False


CASES = (
    _Case("default", (100, 1000)),
    _Case("default", (100,), busy=True, pairs=20),
    _Case("forest", (100, 1000, 10_000), batch=(10_000,)),
    _Case("forest", (100_000,), pairs=20, repeats=1),  # half a minute until so many are told
    _Case("forest", (100, 1000, 10_000), storage="directory"),
    _Case("optuna-tpe", (100, 1000, 10_000)),
    _Case("optuna-tpe", (100, 1000), storage="journal"),
    _Case("optuna-gp", (100,), pairs=10),
    _Case("optuna-gp", (100,), busy=True, pairs=10),
    _Case("deephyper", (100, 1000)),
    _Case("deephyper-default", (100,), pairs=10),  # about two seconds a pair
)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searchers", help="only these, by comma", metavar="NAME,...")
    parser.add_argument("--observations", type=int, default=100_000, help="leave out counts above this")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case, of which the fastest counts")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    wanted = set(arguments.searchers.split(",")) if arguments.searchers else {case.searcher for case in CASES}

    summary: dict[str, Any] = {"skipped": {}}
    versions: dict[str, str] = {}
    rows = []
    for case in CASES:
        reason = missing(case.searcher)
        if case.searcher not in wanted:
            continue
        if reason is not None:
            summary["skipped"][case.searcher] = reason
            progress(f"{case.searcher}: {reason}")
            continue
        name = "-".join(filter(None, (case.searcher, case.storage, "busy" * case.busy))).replace("-", "_")
        for count in (count for count in case.counts if count <= arguments.observations):
            runs = [_pairs(case, count) for _ in range(case.repeats or arguments.repeats)]
            version, times, _ = min(runs, key=lambda run: statistics.median(run[1]))
            versions[case.searcher] = version
            median, p95 = statistics.median(times), statistics.quantiles(times, n=20)[-1]
            summary[f"{name}_ms_{count}"], summary[f"{name}_p95_ms_{count}"] = median, p95
            rows.append([name, f"{count:,}", f"{median:.2f}", f"{p95:.2f}"])
            progress(f"{name} at {count}: {median:.2f} ms")
            batches = [run[2] for run in runs if run[2] is not None]
            if batches:
                summary[f"{name}_batch_{_BATCH}_ms_at_{count}"] = batch = min(batches)
                rows.append([f"{name}, {_BATCH:,} at once", f"{count:,}", f"{batch:.2f}", ""])
                progress(f"{name} at {count}: {batch:.0f} ms for {_BATCH:,} proposals at once")
    header = ["searcher", "observations", "median ms", "95 % ms"]
    print(table(header, rows))
    result = {
        "benchmark": "asktell",
        "summary": summary,
        "versions": versions,
        "settings": {"repeats": arguments.repeats, "pairs": {case.searcher: case.pairs for case in CASES}},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _pairs(case: _Case, count: int) -> tuple[str, list[float], float | None]:
    """Milliseconds of each pair, and of a batch if the case has one, in a fresh process."""
    # On the disk of this checkout, not in /tmp, which may be memory.
    with (
        Peer(case.searcher, one_thread=not case.busy) as peer,
        tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder,
        ExitStack() as others,
    ):
        for _ in range((os.cpu_count() or 1) * case.busy):
            other = others.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            others.callback(other.kill)
        _run(peer, told=20, pairs=20 if case.pairs > 10 else 2)
        options = {case.storage: str(Path(folder) / "study")} if case.storage else {}
        version, times = _run(peer, told=count - case.pairs, pairs=case.pairs, **options)
        batch = 1e3 * min(peer.ask(_BATCH)[2] for _ in range(3)) if count in case.batch else None
        return version, times, batch


def _run(peer: Peer, told: int, pairs: int, **options: str) -> tuple[str, list[float]]:
    draw = random.Random(told)
    version = peer.open(COLUMNS, 1, **options)
    rows = [[_draw(column, draw) for column in COLUMNS] for _ in range(told)]
    peer.load(rows, [_loss(row) for row in rows])
    times = []
    for _ in range(pairs):
        tokens, asked, seconds = peer.ask()
        times.append(1e3 * (seconds + peer.tell(tokens, [_loss(asked[0])])))
    return version, times


def _draw(column: Column, draw: random.Random) -> float:
    if column.kind == "choice":
        return draw.randrange(len(column.values))
    if column.kind == "int":
        return draw.randint(int(column.low), int(column.high))
    if column.kind == "log_float":
        return math.exp(draw.uniform(math.log(column.low), math.log(column.high)))
    return draw.uniform(column.low, column.high)


def _loss(row: list[float]) -> float:
    """Compute a bowl in the floats, the logarithms and the integer, with a step for the choice."""
    bowl = sum((x - 0.3 - 0.05 * i) ** 2 for i, x in enumerate(row[:6]))
    return bowl + sum((math.log10(x) + 3) ** 2 / 4 for x in row[6:8]) + (row[8] - 20) ** 2 / 1000 + 0.2 * (row[9] != 2)


if __name__ == "__main__":
    main()
