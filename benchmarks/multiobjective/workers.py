"""How much sooner a larger team reaches the same hypervolume: asynchronous workers without a leader, simulated.

    python benchmarks/multiobjective/workers.py --json

Each worker has a slot, and so a kappa of its own, and knows every result at once. A trial takes normal(60, 15) s, at
least 1 s, and the time that its proposal took is charged to its worker. `speedup_L_over_S` is the time of the small
team to the hypervolume that it has at its end, over the time of the large team to the same; `--evaluations` is the
budget of each. Published (D-MoBO, arXiv 2309.14936): 5 times faster with 16 times the workers.
"""

import argparse
import heapq
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.multiobjective.problems import FUNCTIONS, Function

import trainwright as tw
from trainwright.search import SearchView

__all__ = ["main"]

_LOOKS = 200  # at the hypervolume, over a run


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default="zdt1,dtlz2", metavar="NAME,...")
    parser.add_argument("--workers", default="40,640", help="the small team and the large one", metavar="SMALL,LARGE")
    parser.add_argument("--evaluations", type=int, default=3200)
    parser.add_argument("--seeds", type=int, default=3)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    small, large = (int(count) for count in arguments.workers.split(","))
    wanted = arguments.problems.split(",")
    rows, speedups = [], []
    for problem in (function for function in FUNCTIONS if function.name in wanted):
        for seed in range(arguments.seeds):
            times, shares = zip(
                *(_run(problem, seed, count, arguments.evaluations) for count in (small, large)), strict=True
            )
            goal = min(shares[0][-1], shares[1][-1])  # both get there
            needed = [float(at[np.argmax(share >= goal)]) for at, share in zip(times, shares, strict=True)]
            speedups.append(needed[0] / needed[1])
            ends = [f"{share[-1]:.4f}" for share in shares]
            rows.append(
                [problem.name, str(seed), *ends, *(f"{seconds:,.0f}" for seconds in needed), f"{speedups[-1]:.1f}"]
            )
            progress(f"{problem.name} seed {seed}: {speedups[-1]:.1f} times as fast")
    header = ["function", "seed", f"end, {small}", f"end, {large}", f"s, {small}", f"s, {large}", "speed-up"]
    result = {
        "benchmark": "multiobjective_workers",
        "summary": {
            f"speedup_{large}_over_{small}": float(np.exp(np.mean(np.log(speedups)))),
            "speedup_least": min(speedups),
        },
        "settings": {"evaluations": arguments.evaluations, "seeds": arguments.seeds, "workers": [small, large]},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    print(table(header, rows))
    finish(result, arguments)
    return result


def _run(
    problem: Function, seed: int, workers: int, evaluations: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when results were there, in seconds, and the share of the true hypervolume at these times."""
    space = tw.Space.of({column.name: tw.Float(column.low, column.high) for column in problem.columns})
    view, searcher = SearchView(space, seed, problem.objectives), tw.ForestSearcher()
    durations = np.maximum(1.0, np.random.default_rng(seed).normal(60.0, 15.0, evaluations)).tolist()
    proposed: dict[int, list[float]] = {}
    points: list[list[float]] = []
    ends: list[float] = []
    running: list[tuple[float, int, int]] = []  # end, number, slot
    free = [(0.0, slot) for slot in range(workers)]
    started = 0
    while len(points) < evaluations:
        while free and started < evaluations:
            at, view.slot = free.pop()
            before = time.perf_counter()
            [configuration] = searcher.ask(view, [started])
            view.propose(started, configuration)
            proposed[started] = [float(configuration[column.name]) for column in problem.columns]
            at += time.perf_counter() - before
            heapq.heappush(running, (at + durations[started], started, view.slot))
            started += 1
        end, number, slot = heapq.heappop(running)
        points.append(proposed.pop(number))
        view.result(number, problem.show(seed, points[-1], 0), epoch=None, complete=True)
        ends.append(end)
        free.append((end, slot))
    steps = np.unique(np.linspace(1, evaluations, _LOOKS).round().astype(int))
    losses = problem.losses(np.array(points))
    shares = [problem.share(points[:count], losses[:count]) for count in steps]
    return np.array(ends)[steps - 1], np.maximum.accumulate(shares)


if __name__ == "__main__":
    main()
