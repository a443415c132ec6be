r"""How well many workers search: 256 of them, ten trials each, beside random search with as many, in simulated time.

    python benchmarks/scale/waves.py --json
    python benchmarks/scale/waves.py --functions levy5,hartmann6 --several zdt1 --tables DIR --workers 1920

`team`: each worker decides for itself, with its own slot, as soon as its trial ends, knowing all results and what the
others run. `batch`: one process asks for a wave at a time and waits for all of it. A trial takes normal(60, 15) s, at
least 1 s. Functions whose minimum is in the middle are moved, or the first trial of a spread design would find it;
tables that are smaller than twice the trials are left out. Regret with one objective is `search`'s, of the trial that
was seen to do best; with several it is the share of the true hypervolume that is missing. What counts is its ratio to
random search's after so many waves: the ratio of means over seeds, and its geometric mean over problems.
"""

import argparse
import heapq
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.multiobjective.problems import FUNCTIONS as SEVERAL
from benchmarks.multiobjective.problems import find_problems
from benchmarks.peers.with_trainwright import Own
from benchmarks.search.data import find_tables
from benchmarks.search.functions import Function, find_functions
from benchmarks.search.measures import incumbents

import trainwright as tw
from trainwright.search import SearchView

__all__ = ["main"]

Array = NDArray[np.float64]
_SEARCHERS = {"forest": tw.ForestSearcher, "gp": tw.GaussianProcessSearcher, "random": tw.RandomSearcher}
_LEAST = 1e-4  # regret below which there is nothing left to find
_MOVED = 0.15  # of the range: how far a function with its minimum in the middle is moved


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", default="all", metavar="all|none|NAME,...")
    parser.add_argument("--several", default="all", help="functions with several objectives", metavar="all|none|...")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="sets of tables; with training time, twice")
    parser.add_argument("--searchers", default="default", metavar="NAME,...")
    parser.add_argument("--modes", default="team,batch")
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--waves", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    problems = _problems(arguments)
    methods = [f"{name} {mode}" for name in arguments.searchers.split(",") for mode in arguments.modes.split(",")]
    found: dict[str, dict[str, list[list[float]]]] = {method: {} for method in ["random team", *methods]}
    for problem in problems:
        for method, regrets in found.items():
            regrets[problem.name] = [_run(problem, method, seed, arguments) for seed in range(arguments.seeds)]
        ends = ", ".join(f"{method} {np.mean(found[method][problem.name], axis=0)[-1]:.4f}" for method in found)
        progress(f"{problem.name}: {ends}")
    groups = {"one": [p.name for p in problems if not _is_several(p)], "several": []}
    groups["several"] = [p.name for p in problems if p.name not in groups["one"]]
    ratios = {
        method: {group: _ratios(found, method, names) for group, names in groups.items() if names} for method in methods
    }
    waves = sorted({1, 2, 3, 5, arguments.waves})
    header = ["searcher", "objectives", *(f"wave {wave}" for wave in waves), "worst problem, last wave"]
    rows = []
    for method, of_groups in ratios.items():
        for group, by_problem in of_groups.items():
            worst = max(by_problem, key=lambda name: by_problem[name][-1])
            means = [_mean(by_problem, wave) for wave in waves]
            rows.append([method, group, *(f"{mean:.2f}" for mean in means), f"{worst} {by_problem[worst][-1]:.2f}"])
    summary = {
        f"regret_over_random_{method.replace(' ', '_')}_{group}": {wave: _mean(found, wave) for wave in waves}
        for method, of_groups in ratios.items()
        for group, found in of_groups.items()
    }
    result = {
        "benchmark": "scale_waves",
        "summary": summary,
        "detail": {"ratios": ratios, "regrets": found},
        "settings": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(arguments).items()
            if name not in {"json", "results", "tables"}
        },
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    print(table(header, rows))
    finish(result, arguments)
    return result


def _problems(arguments: argparse.Namespace) -> list[Any]:
    found: list[Any] = []
    if arguments.functions != "none":
        found += [_moved(function) for function in find_functions(arguments.functions)]
    if arguments.several != "none":
        wanted = arguments.several.split(",")
        found += [function for function in SEVERAL if arguments.several == "all" or function.name in wanted]
    if arguments.tables is not None:
        most = arguments.workers * arguments.waves
        found += [one for one in find_tables(arguments.tables) if one.size >= 2 * most]
        several: list[Any] = [one for one in find_problems(arguments.tables) if one not in SEVERAL]
        found += [replace(one, name=f"{one.name}, time") for one in several if len(one.losses) >= 2 * most]
    return found


def _moved(function: Function) -> Function:
    """Return the function, its minimum elsewhere if it is in the middle."""
    low, high = np.array(function.bounds).T
    if not np.allclose(function.best, (low + high) / 2):
        return function
    step = _MOVED * (high - low) * np.where(np.arange(len(low)) % 2, -1.0, 1.0)
    best = tuple((np.array(function.best) + step).tolist())
    return replace(function, losses=lambda x: function.losses(x - step), best=best)


def _is_several(problem: Any) -> bool:
    return not hasattr(problem, "regret")


def _mean(ratios: dict[str, list[float]], wave: int) -> float:
    return float(np.exp(np.mean([np.log(values[wave - 1]) for values in ratios.values()])))


def _ratios(found: dict[str, Any], method: str, names: list[str]) -> dict[str, list[float]]:
    """Return the ratio of mean regrets to random search's, after each wave, by problem."""
    ours, theirs = ({name: np.mean(found[m][name], axis=0) for name in names} for m in (method, "random team"))
    return {name: (np.maximum(ours[name], _LEAST) / np.maximum(theirs[name], _LEAST)).tolist() for name in names}


def _run(problem: Any, method: str, seed: int, arguments: argparse.Namespace) -> list[float]:
    """Return the regret after each wave of trials."""
    name, mode = method.split()
    several, workers, count = _is_several(problem), arguments.workers, arguments.workers * arguments.waves
    own = Own(problem.columns, seed)  # which knows how columns become a space
    view = SearchView(own.space, seed, problem.objectives if several else 1)
    searcher = tw.search.DefaultSearcher() if name == "default" else _SEARCHERS[name]()
    points: list[list[float]] = []
    shown: list[Any] = []
    seen: dict[Any, int] = {}

    def start(numbers: list[int]) -> list[list[float]]:
        found = searcher.ask(view, numbers)
        for number, configuration in zip(numbers, found, strict=True):
            view.propose(number, configuration)
        return [own.row(configuration.params) for configuration in found]

    def end(number: int, row: list[float]) -> None:
        place: Any = tuple(row) if several else problem.place(row)
        repeat = seen[place] = seen.get(place, -1) + 1
        loss = problem.show(seed, place, repeat)
        points.append(place)
        shown.append(loss)
        view.result(number, loss if several else [loss], epoch=None, complete=True)

    if mode == "batch":
        for wave in range(arguments.waves):
            numbers = list(range(wave * workers, (wave + 1) * workers))
            for number, row in zip(numbers, start(numbers), strict=True):
                end(number, row)
    else:
        _work_as_team(view, start, end, workers=workers, count=count, seed=seed)
    ends = range(workers, count + 1, workers)
    if several:
        return [1.0 - problem.share(points[:stop], np.array(shown[:stop])) for stop in ends]
    best = incumbents(np.array(shown))
    return [float(problem.regret([points[best[stop - 1]]])[0]) for stop in ends]


def _work_as_team(
    view: SearchView,
    start: Callable[[list[int]], list[list[float]]],
    end: Callable[[int, list[float]], None],
    *,
    workers: int,
    count: int,
    seed: int,
) -> None:
    durations = np.maximum(1.0, np.random.default_rng(seed).normal(60.0, 15.0, count)).tolist()
    running: list[tuple[float, int, int, list[float]]] = []
    free, now, started = list(range(workers))[::-1], 0.0, 0
    while started < count or running:
        while free and started < count:
            view.slot = free.pop()
            [row] = start([started])
            heapq.heappush(running, (now + durations[started], started, view.slot, row))
            started += 1
        now, number, slot, row = heapq.heappop(running)
        end(number, row)
        free.append(slot)


if __name__ == "__main__":
    main()
