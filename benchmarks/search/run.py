r"""Search quality on tables of finished trainings: our forest beside random search, Optuna's TPE and DeepHyper's CBO.

    python benchmarks/search/run.py --tables DIR --searchers forest,random,optuna-tpe,deephyper \
        --evaluations 100 --seeds 30 --json

Every method sees the same tables, the same seeds and the same noise, sequentially or with simulated workers. An
evaluation shows one data seed's value; regret is judged on the mean over data seeds: (f(best found) - f*) / (f_median -
f*), of the configuration that the method itself has seen do best. `mean_regret` is its mean over trials 1..budget,
`final_regret` its value at the end. Intervals: 95 %, bootstrap over seeds inside tables. A searcher written as
`deephyper-default:3` runs 3 seeds; its rank is then among all on these seeds, and the others are ranked without it.
Finished searches are kept (`--cells`), so a run that was cut off goes on, and a peer that is not installed is
represented by its kept searches, or skipped and named.
"""

import argparse
import sys
from collections import deque
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import RESULTS, add_arguments, environment, finish, progress, table
from benchmarks.peers.client import METHODS, Peer, missing
from benchmarks.search.cells import Cell, Cells, Key
from benchmarks.search.data import Table, find_tables
from benchmarks.search.measures import average_ranks, bootstrap, incumbents

__all__ = ["curve", "main", "search"]

# By searcher, then by table: an array of [seeds, evaluations].
Regrets = dict[str, dict[str, NDArray[np.float64]]]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run what is not kept yet, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tables", type=Path, required=True, metavar="DIR", help="a set of tables, or a parent of several"
    )
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
    wanted = _wanted(arguments)
    tables = find_tables(arguments.tables)
    for t in tables:
        if arguments.evaluations > len(t.truth):
            raise SystemExit(f"--evaluations {arguments.evaluations}: {t.name} has only {len(t.truth)} configurations")

    regrets: Regrets = {}
    facts: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name, seeds in wanted.items():
        cells = _cells(name, tables, seeds, arguments, skipped)
        if cells:
            regrets[name] = {
                t.name: np.stack([curve(t, c, arguments.evaluations) for c in cells[t.name]]) for t in tables
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
    result = _judge(regrets, facts, tables, wanted)
    result["summary"]["skipped"] = skipped
    result["settings"] = {
        "evaluations": arguments.evaluations,
        "workers": arguments.workers,
        "seeds": {name: list(range(wanted[name])) for name in regrets},
        "tables": {t.name: t.digest for t in tables},
    }
    header, rows = _rows(result)
    result["table"] = {"header": header, "rows": rows}
    result["environment"] = environment()
    print(table(header, rows))
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
    name: str, tables: list[Table], seeds: int, arguments: argparse.Namespace, skipped: dict[str, str]
) -> dict[str, list[Cell]]:
    """All cells of one searcher, run or kept; empty if its peer is absent and not all of them are kept."""
    kept = Cells(arguments.cells / f"{name}.jsonl")
    reason = missing(name)
    cells: dict[str, list[Cell]] = {t.name: [] for t in tables}
    if reason is not None:
        for t, seed in product(tables, range(seeds)):
            key = Key(kept.latest_version or "", t.name, t.digest, seed, arguments.workers)
            cell = kept.find(key, arguments.evaluations)
            if cell is None:
                skipped[name] = reason
                progress(f"{name}: {reason}")
                return {}
            cells[t.name].append(cell)
        skipped[name] = f"{reason}; kept searches of {kept.latest_version} stand for it"
        progress(f"{name}: {skipped[name]}")
        return cells
    with Peer(name) as peer:
        for seed, t in product(range(seeds), tables):  # by seeds, so that a run that is cut off has whole ones
            key = Key(peer.open(t.columns, seed), t.name, t.digest, seed, arguments.workers)
            cell = kept.find(key, arguments.evaluations)
            if cell is None:
                cell = search(peer, t, key, arguments.evaluations)
                kept.add(cell)
                final = curve(t, cell, arguments.evaluations)[-1]
                progress(f"{name} {t.name} seed {seed}: final regret {final:.4f}, {cell.ask_tell_ms:.2f} ms")
            cells[t.name].append(cell)
    return cells


def search(peer: Peer, t: Table, key: Key, evaluations: int) -> Cell:
    """Search one table with an opened peer; with several workers, evaluations end in the order in which they began."""
    rows: list[int] = []
    seen: dict[int, int] = {}
    running: deque[tuple[int, int]] = deque()
    seconds = 0.0
    while len(rows) < evaluations:
        free = min(key.workers, evaluations - len(rows)) - len(running)
        if free > 0:
            tokens, proposals, spent = peer.ask(free)
            seconds += spent
            running.extend((token, t.row(proposal)) for token, proposal in zip(tokens, proposals, strict=True))
        token, row = running.popleft()
        repeat = seen[row] = seen.get(row, -1) + 1
        rows.append(row)
        seconds += peer.tell([token], [t.show(key.seed, row, repeat)])
    return Cell(key, tuple(rows), round(1e3 * seconds / evaluations, 4))


def curve(t: Table, cell: Cell, evaluations: int) -> NDArray[np.float64]:
    """Regret of the incumbent after each evaluation."""
    rows = cell.rows[:evaluations]
    seen: dict[int, int] = {}
    losses = np.empty(len(rows))
    for position, row in enumerate(rows):
        repeat = seen[row] = seen.get(row, -1) + 1
        losses[position] = t.show(cell.key.seed, row, repeat)
    return t.regret(np.asarray(rows)[incumbents(losses)])


def _judge(regrets: Regrets, facts: dict[str, Any], tables: list[Table], wanted: dict[str, int]) -> dict[str, Any]:
    full = max(wanted[name] for name in regrets)
    reference = "forest" if "forest" in regrets else next(iter(regrets))
    mean = {name: {key: values.mean(axis=1) for key, values in found.items()} for name, found in regrets.items()}
    final = {name: {key: values[:, -1] for key, values in found.items()} for name, found in regrets.items()}
    summary: dict[str, Any] = {}
    for label, values in (("mean", mean), ("final", final)):
        intervals = {name: bootstrap(found) for name, found in values.items()}
        summary[f"{label}_regret"] = {name: interval[0] for name, interval in intervals.items()}
        summary[f"{label}_regret_interval"] = {name: interval[1:] for name, interval in intervals.items()}
        summary["average_rank" if label == "mean" else "final_rank"] = _ranks(values, wanted, full)
        # Paired: the same seeds and the same noise; positive means that the reference is better.
        summary[f"{label}_difference_to_{reference}"] = {
            name: bootstrap({key: found[key][:few] - values[reference][key][:few] for key in found})
            for name, found in values.items()
            if name != reference
            for few in [min(wanted[name], wanted[reference])]
        }
    groups = {t.name: [t.name] for t in tables} | {
        t.family: [u.name for u in tables if u.family == t.family] for t in tables
    }
    detail = {
        group: {
            name: {
                "mean_regret": bootstrap({key: mean[name][key] for key in keys}),
                "final_regret": bootstrap({key: final[name][key] for key in keys}),
            }
            for name in regrets
        }
        for group, keys in groups.items()
    }
    return {"benchmark": "search", "summary": summary, "detail": detail, "searchers": facts, "reference": reference}


def _ranks(values: dict[str, dict[str, NDArray[np.float64]]], wanted: dict[str, int], full: int) -> dict[str, float]:
    """Methods with all seeds are ranked among themselves, one with fewer among all on its seeds."""
    ranks: dict[str, float] = {}
    for name, found in values.items():
        seeds = wanted[name]
        field = [other for other in values if wanted[other] >= full or other == name]
        ranked = average_ranks([np.concatenate([values[other][key][:seeds] for key in found]) for other in field])
        ranks[name] = float(ranked[field.index(name)])
    return ranks


def _rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    summary, reference = result["summary"], result["reference"]
    means, finals = (summary[f"{label}_difference_to_{reference}"] for label in ("mean", "final"))
    rows = [
        [
            name,
            str(fact["seeds"]),
            f"{summary['mean_regret'][name]:.4f}",
            "{:.4f}..{:.4f}".format(*summary["mean_regret_interval"][name]),
            "{:+.4f} ({:+.4f}..{:+.4f})".format(*means[name]) if name in means else "",
            f"{summary['average_rank'][name]:.2f}",
            f"{summary['final_regret'][name]:.4f}",
            "{:.4f}..{:.4f}".format(*summary["final_regret_interval"][name]),
            "{:+.4f} ({:+.4f}..{:+.4f})".format(*finals[name]) if name in finals else "",
            f"{summary['final_rank'][name]:.2f}",
        ]
        for name, fact in result["searchers"].items()
    ]
    header = ["searcher", "seeds", "mean regret", "95 %", f"minus {reference}", "rank"]
    header += ["final regret", "95 %", f"minus {reference}", "rank"]
    return header, rows


if __name__ == "__main__":
    main()
