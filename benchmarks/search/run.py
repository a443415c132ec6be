r"""Search quality on tables of finished trainings and on test functions: our searchers beside others' packages.

    python benchmarks/search/run.py --tables DIR --searchers forest,random,optuna-tpe,deephyper \
        --evaluations 100 --seeds 30 --json
    python benchmarks/search/run.py --functions all --workers 16

Every method sees the same problems, the same seeds and the same noise, one evaluation at a time or with simulated
workers. An evaluation of a table shows one data seed's value; regret is judged on the mean over data seeds:
(f(best found) - f*) / (f_median - f*), at most 1, of the configuration that the method itself has seen do best: one
first trial that diverged would else decide a mean. `mean_regret` is
its mean over trials 1..budget, `final_regret` its value at the end. Intervals: 95 %, bootstrap over seeds inside
problems. A searcher written as `deephyper-default:3` runs 3 seeds; its rank is then among all on these seeds, and the
others are ranked without it. Finished searches are kept (`--cells`), so a run that was cut off goes on, and a peer that
is not installed is represented by its kept searches, or skipped and named.
"""

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import RESULTS, add_arguments, environment, finish, progress, table
from benchmarks.peers.client import METHODS, TOLD_THE_BUDGET, Peer, missing
from benchmarks.search.cells import Cell, Cells, Key
from benchmarks.search.data import find_tables
from benchmarks.search.functions import find_functions
from benchmarks.search.judge import Regrets, judge, rows
from benchmarks.search.simulate import Problem, curve, search

__all__ = ["main"]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run what is not kept yet, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, metavar="DIR", help="a set of tables, or a parent of several")
    parser.add_argument("--functions", metavar="all|wide|NAME,...", help="test functions")
    parser.add_argument("--searchers", default="forest,random,optuna-tpe,deephyper", metavar="NAME[:SEEDS],...")
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument(
        "--workers", type=int, default=1, help="simulated workers: so many evaluations are always under way"
    )
    parser.add_argument(
        "--cells", type=Path, default=RESULTS / "cells", metavar="DIR", help="where finished searches are kept"
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    if min(arguments.evaluations, arguments.seeds, arguments.workers) < 1:
        parser.error("--evaluations, --seeds and --workers must be at least 1")
    if arguments.tables is None and arguments.functions is None:
        parser.error("nothing to search in; give --tables DIR, --functions all, or both")
    wanted = _wanted(arguments)
    problems: list[Problem] = []
    if arguments.tables is not None:
        problems += find_tables(arguments.tables)
    if arguments.functions is not None:
        problems += find_functions(arguments.functions)
    for p in problems:
        if p.size is not None and arguments.evaluations > p.size:
            raise SystemExit(f"--evaluations {arguments.evaluations}: {p.name} has only {p.size} configurations")

    regrets: Regrets = {}
    facts: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name, seeds in wanted.items():
        cells = _cells(name, problems, seeds, arguments, skipped)
        if cells:
            regrets[name] = {
                p.name: np.stack([curve(p, c, arguments.evaluations) for c in cells[p.name]]) for p in problems
            }
            flat = [cell for found in cells.values() for cell in found]
            facts[name] = {
                "version": flat[0].key.version,
                "seeds": seeds,
                # As it was when the cells were run, perhaps beside other work: to compare speed there is `asktell`.
                "ask_tell_ms": float(np.mean([c.ask_tell_ms for c in flat])),
            }
    if not regrets:
        raise SystemExit(f"nothing was measured: {skipped}")
    result = {"benchmark": "search", **judge(regrets, problems, wanted), "searchers": facts}
    result["summary"]["skipped"] = skipped
    result["settings"] = {
        "evaluations": arguments.evaluations,
        "workers": arguments.workers,
        "seeds": {name: list(range(wanted[name])) for name in regrets},
        "tables": {p.name: p.digest for p in problems},
    }
    header, cells_of_table = rows(result)
    result["table"] = {"header": header, "rows": cells_of_table}
    result["environment"] = environment()
    print(table(header, cells_of_table))
    finish(result, arguments)
    return result


def _wanted(arguments: argparse.Namespace) -> dict[str, int]:
    """How many seeds of which searchers."""
    wanted: dict[str, int] = {}
    for item in arguments.searchers.split(","):
        name, _, seeds = item.partition(":")
        if name not in METHODS:
            raise SystemExit(f"{name!r} is no searcher; known are {', '.join(METHODS)}")
        if seeds and not (seeds.isdecimal() and int(seeds)):
            raise SystemExit(f"{item!r}: the number of seeds after the colon must be at least 1")
        wanted[name] = int(seeds or arguments.seeds)
    return wanted


def _cells(
    name: str, problems: list[Problem], seeds: int, arguments: argparse.Namespace, skipped: dict[str, str]
) -> dict[str, list[Cell]]:
    """All cells of one searcher, run or kept; empty if its peer is absent and not all of them are kept."""
    kept = Cells(arguments.cells / f"{name}.jsonl")
    reason = missing(name)
    cells: dict[str, list[Cell]] = {p.name: [] for p in problems}
    if reason is not None:
        for p, seed in product(problems, range(seeds)):
            key = Key(kept.latest_version.get(p.name, ""), p.name, p.digest, seed, arguments.workers)
            cell = kept.find(key, arguments.evaluations)
            if cell is None:
                skipped[name] = reason
                progress(f"{name}: {reason}")
                return {}
            cells[p.name].append(cell)
        versions = ", ".join(sorted({kept.latest_version[p.name] for p in problems}))
        skipped[name] = f"{reason}; kept searches of {versions} stand for it"
        progress(f"{name}: {skipped[name]}")
        return cells
    options = {"evaluations": arguments.evaluations} if name in TOLD_THE_BUDGET else {}
    with Peer(name) as peer:
        for seed, p in product(range(seeds), problems):  # whole seeds first, for a run that is cut off
            version = peer.open(p.columns, seed, **options)
            key = Key(version, p.name, p.digest, seed, arguments.workers)
            cell = kept.find(key, arguments.evaluations)
            if cell is None:
                cell = search(peer, p, key, arguments.evaluations)
                kept.add(cell)
                final = curve(p, cell, arguments.evaluations)[-1]
                progress(f"{name} {p.name} seed {seed}: final regret {final:.4f}, {cell.ask_tell_ms:.2f} ms")
            cells[p.name].append(cell)
    return cells


if __name__ == "__main__":
    main()
