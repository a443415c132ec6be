"""Hypervolume of searchers with several objectives: ZDT and DTLZ functions, and tables of finished trainings.

    python benchmarks/multiobjective/run.py --tables DIR --json

Each search makes `--evaluations` evaluations one after the other. What counts is the hypervolume that its front
dominates, as a share of the true front's: the front is chosen by what the search was shown, and judged by the truth.
Finished searches are kept in `results/cells/`, as in `search/`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import RESULTS, add_arguments, environment, finish, progress, table
from benchmarks.multiobjective.problems import Problem, find_problems
from benchmarks.peers.client import Peer, missing
from benchmarks.search.measures import average_ranks, bootstrap

__all__ = ["main"]

SEARCHERS = (
    "several-default", "several-forest", "several-random", "several-nsga2", "several-tpe", "several-deephyper",
    "several-deephyper-chebyshev",
)  # fmt: skip


class _Cell(NamedTuple):
    """One finished search: what it tried and what it was shown."""

    points: list[list[float]]
    shown: list[list[float]]
    ask_tell_ms: float


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, help="folder of tables that have a training time", metavar="DIR")
    parser.add_argument("--searchers", default=",".join(SEARCHERS), help="by comma", metavar="NAME,...")
    parser.add_argument("--problems", help="only these, by comma", metavar="NAME,...")
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--cells", type=Path, default=RESULTS / "cells", help="where finished searches are kept")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    problems = find_problems(arguments.tables)
    if arguments.problems:
        problems = [problem for problem in problems if problem.name in arguments.problems.split(",")]

    shares: dict[str, dict[str, np.ndarray]] = {}
    facts: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name in arguments.searchers.split(","):
        reason = missing(name)
        if reason is not None:
            skipped[name] = reason
            progress(f"{name}: {reason}")
            continue
        shares[name], facts[name] = _measure(name, problems, arguments)
    if not shares:
        raise SystemExit(f"nothing was measured: {skipped}")
    result = _judge(shares, facts, problems)
    result["summary"]["skipped"] = skipped
    result["settings"] = {
        "evaluations": arguments.evaluations,
        "seeds": list(range(arguments.seeds)),
        "problems": {problem.name: problem.digest for problem in problems},
    }
    result["environment"] = environment()
    print(table(result["table"]["header"], result["table"]["rows"]))
    finish(result, arguments)
    return result


def _measure(
    name: str, problems: list[Problem], arguments: argparse.Namespace
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the shares [seeds, evaluations] by problem, and what is to be said of the searcher."""
    path = arguments.cells / f"{name}.jsonl"
    kept = _read(path)
    shares: dict[str, np.ndarray] = {}
    times = []
    version = ""
    with Peer(name) as peer:
        for problem in problems:
            curves = []
            for seed in range(arguments.seeds):
                version = peer.open(problem.columns, seed, objectives=problem.objectives)
                key = (version, problem.name, problem.digest, seed)
                cell = kept.get(key)
                if cell is None or len(cell.points) < arguments.evaluations:
                    cell = _search(peer, problem, seed, arguments.evaluations)
                    _keep(path, key, cell)
                times.append(cell.ask_tell_ms)
                curves.append(_curve(problem, cell, arguments.evaluations))
            shares[problem.name] = np.array(curves)
            progress(f"{name} {problem.name}: {np.mean(curves, axis=0)[-1]:.4f}, {np.mean(times):.2f} ms")
    return shares, {"version": version, "ask_tell_ms": float(np.mean(times))}


def _search(peer: Peer, problem: Problem, seed: int, evaluations: int) -> _Cell:
    points, shown = [], []
    seen: dict[tuple[float, ...], int] = {}
    seconds = 0.0
    for _ in range(evaluations):
        tokens, [point], spent = peer.ask()
        repeat = seen[tuple(point)] = seen.get(tuple(point), -1) + 1
        losses: Any = problem.show(seed, point, repeat)
        seconds += spent + peer.tell(tokens, [losses])
        points.append(point)
        shown.append(losses)
    return _Cell(points, shown, round(1e3 * seconds / evaluations, 4))


def _curve(problem: Problem, cell: _Cell, evaluations: int) -> np.ndarray:
    """Return the share of the true hypervolume after each tenth evaluation."""
    steps = sorted({*range(10, evaluations + 1, 10), evaluations})
    shown = np.array(cell.shown)
    return np.array([problem.share(cell.points[:count], shown[:count]) for count in steps])


def _read(path: Path) -> dict[tuple[Any, ...], _Cell]:
    """Return the kept searches; a line that a kill cut short is skipped."""
    kept = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            data = json.loads(line)
            kept[tuple(data["key"])] = _Cell(data["points"], data["shown"], data["ask_tell_ms"])
        except (ValueError, KeyError):
            continue
    return kept


def _keep(path: Path, key: tuple[Any, ...], cell: _Cell) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    points = [[float(f"{x:.6g}") for x in point] for point in cell.points]
    shown = [[float(f"{x:.7g}") for x in losses] for losses in cell.shown]
    with path.open("a") as file:
        file.write(json.dumps({"key": key, "points": points, "shown": shown, "ask_tell_ms": cell.ask_tell_ms}) + "\n")


def _judge(
    shares: dict[str, dict[str, np.ndarray]], facts: dict[str, dict[str, Any]], problems: list[Problem]
) -> dict[str, Any]:
    names = list(shares)
    final = {name: {key: values[:, -1] for key, values in found.items()} for name, found in shares.items()}
    mean = {name: {key: values.mean(axis=1) for key, values in found.items()} for name, found in shares.items()}
    ranks = average_ranks([-np.concatenate([final[name][p.name] for p in problems]) for name in names])
    summary: dict[str, Any] = {
        "hypervolume": {name: bootstrap(final[name])[0] for name in names},
        "hypervolume_interval": {name: bootstrap(final[name])[1:] for name in names},
        "mean_hypervolume": {name: bootstrap(mean[name])[0] for name in names},
        "average_rank": dict(zip(names, ranks.tolist(), strict=True)),
        # Paired: the same seeds and the same noise; positive means that the first is better.
        f"{names[0]}_minus": {
            name: bootstrap({key: final[names[0]][key] - final[name][key] for key in final[name]}) for name in names[1:]
        },
    }
    header = ["searcher", "hypervolume", "95 %", "mean over evaluations", "rank", "ms", *(p.name for p in problems)]
    rows = [
        [
            name,
            f"{summary['hypervolume'][name]:.4f}",
            "{:.4f}..{:.4f}".format(*summary["hypervolume_interval"][name]),
            f"{summary['mean_hypervolume'][name]:.4f}",
            f"{summary['average_rank'][name]:.2f}",
            f"{facts[name]['ask_tell_ms']:.2f}",
            *(f"{final[name][p.name].mean():.3f}" for p in problems),
        ]
        for name in names
    ]
    by_problem = {p.name: {name: final[name][p.name].tolist() for name in names} for p in problems}
    return {
        "benchmark": "multiobjective",
        "summary": summary,
        "searchers": facts,
        "final_by_problem": by_problem,
        "table": {"header": header, "rows": rows},
    }


if __name__ == "__main__":
    main()
