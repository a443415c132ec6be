"""Transfer: how much earlier studies of related tables save, on tables of finished trainings.

    python benchmarks/transfer/run.py --tables DIR --json

For each ordered pair of tables of one set, a forest without transfer searches the first for `--earlier` evaluations;
then the second is searched without it and with it, on the same seeds. It is searched with
the studies of all other tables too, and with one more that was told the opposite: each loss with its sign turned.
Regret is normalised as in `search/`, over `--evaluations`; the first trials are what transfer is for, so it is judged
at 10 trials too.
"""

import argparse
import sys
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.search.cells import Cell, Key
from benchmarks.search.data import Table, find_tables
from benchmarks.search.measures import bootstrap
from benchmarks.search.simulate import curve

import trainwright as tw

__all__ = ["main"]

_WAYS = ("none", "surrogate", "several", "several, one opposite")
_EARLY = 10  # trials


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="sets of tables of one space each")
    parser.add_argument("--earlier", type=int, default=50, help="evaluations of the earlier study")
    parser.add_argument("--evaluations", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=10)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    tables = find_tables(arguments.tables)
    pairs = [(a, b) for a, b in permutations(tables, 2) if a.columns == b.columns]
    if not pairs:
        raise SystemExit(f"{arguments.tables} has no two tables of one space")

    curves: dict[str, dict[str, np.ndarray]] = {way: {} for way in _WAYS}
    for source, target in pairs:
        name = f"{source.name} to {target.name.rsplit('/', 1)[-1]}"
        found: dict[str, list[np.ndarray]] = {way: [] for way in _WAYS}
        for seed in range(arguments.seeds):
            # The source comes first, so that each pair is of another order.
            others = [source, *(table for table, of in pairs if of is target and table is not source)]
            earlier = [_search(other, tw.ForestSearcher(), seed + 1000, arguments.earlier)[0] for other in others]
            opposite, _ = _search(source, tw.ForestSearcher(), seed + 2000, arguments.earlier, sign=-1.0)
            for way in _WAYS:
                searcher = _searcher(earlier, opposite, way)
                _, places = _search(target, searcher, seed, arguments.evaluations)
                cell = Cell(Key("", target.name, target.digest, seed, 1), tuple(places), 0.0)
                found[way].append(curve(target, cell, arguments.evaluations))
        for way in _WAYS:
            curves[way][name] = np.array(found[way])
        progress(f"{name}: " + ", ".join(f"{way} {curves[way][name].mean():.4f}" for way in _WAYS))
    result = _judge(curves)
    result["settings"] = {
        "earlier": arguments.earlier,
        "evaluations": arguments.evaluations,
        "seeds": list(range(arguments.seeds)),
        "tables": {t.name: t.digest for t in tables},
    }
    result["environment"] = environment()
    print(table(result["table"]["header"], result["table"]["rows"]))
    finish(result, arguments)
    return result


def _searcher(earlier: list[tw.Study], opposite: tw.Study, way: str) -> tw.ForestSearcher:
    if way == "none":
        return tw.ForestSearcher()
    studies = {"surrogate": earlier[:1], "several": earlier, "several, one opposite": [*earlier, opposite]}
    return tw.ForestSearcher(warm_start=studies[way])


def _search(
    problem: Table, searcher: tw.ForestSearcher, seed: int, evaluations: int, sign: float = 1.0
) -> tuple[tw.Study, list[int]]:
    """Search one table and return the study and the rows that it tried."""
    space = tw.Space.of({c.name: tw.Choice(*c.values, ordered=c.kind == "ordinal") for c in problem.columns})
    places = [{value: place for place, value in enumerate(c.values)} for c in problem.columns]
    study = tw.Study(space, objectives="min loss", seed=seed, searcher=searcher)
    rows: list[int] = []
    for _ in range(evaluations):
        asked = study.ask()
        row = problem.place([p[asked.params[c.name]] for c, p in zip(problem.columns, places, strict=True)])
        study.tell(asked, loss=sign * problem.show(seed, row, rows.count(row)))
        rows.append(row)
    return study, rows


def _judge(curves: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    measures = {
        "mean_regret": lambda values: values.mean(axis=1),
        f"regret_{_EARLY}": lambda values: values[:, _EARLY - 1],
        "final_regret": lambda values: values[:, -1],
    }
    summary: dict[str, Any] = {}
    rows: list[list[str]] = [[way, str(sum(map(len, curves[way].values())))] for way in _WAYS]
    for label, measure in measures.items():
        found = {way: {pair: measure(values) for pair, values in curves[way].items()} for way in _WAYS}
        summary[label] = {way: bootstrap(values)[0] for way, values in found.items()}
        # Paired with the search without transfer: the same seeds and the same noise; negative is better.
        gains = {
            way: bootstrap({pair: values - found["none"][pair] for pair, values in by_pair.items()})
            for way, by_pair in found.items()
            if way != "none"
        }
        summary[f"{label}_difference"] = gains
        for row in rows:
            gain = "{:+.4f} ({:+.4f}..{:+.4f})".format(*gains[row[0]]) if row[0] in gains else ""
            row += [f"{summary[label][row[0]]:.4f}", gain]
    detail = {pair: {way: float(curves[way][pair].mean()) for way in _WAYS} for pair in curves["none"]}
    header = ["transfer", "searches", "mean regret", "minus none", f"at {_EARLY} trials", "minus none"]
    header += ["final regret", "minus none"]
    return {
        "benchmark": "transfer",
        "summary": summary,
        "detail": detail,
        "table": {"header": header, "rows": rows},
    }


if __name__ == "__main__":
    main()
