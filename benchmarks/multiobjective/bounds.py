"""Bounds and constraints: the process, the forest and the default, which asks one or both in turn.

    python benchmarks/multiobjective/bounds.py --seeds 4 --json

With one objective and a constraint: normalised regret of the best legal trial, 0 the best of 40,000 random points, 1
their median, averaged over the trials. With two objectives and a bound: hypervolume of the legal trials below the
bounds, as a share of the most that any search found. Losses are without noise.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.search.functions import find_functions

import trainwright as tw
from trainwright.pareto import hypervolume
from trainwright.search import Searcher, SearchView

__all__ = ["main"]

Array = NDArray[np.float64]
_POINTS = 40_000  # random ones, that set the scale of regret


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Losses [objectives and constraints] of a point of the unit cube, and the greatest of each that are legal."""

    dimension: int
    losses: Callable[[Array], Sequence[float]]
    bounds: tuple[float, ...]
    objectives: int = 1
    reference: tuple[float, ...] = ()  # for several objectives


def _constrained(name: str, constraint: Callable[[Array], float], bound: float) -> Bounded:
    [function] = find_functions(name)
    low, high = (np.array([getattr(column, end) for column in function.columns]) for end in ("low", "high"))
    return Bounded(
        dimension=len(function.columns),
        losses=lambda x: (function.place(low + x * (high - low)), constraint(x)),
        bounds=(np.inf, bound),
    )


def _zdt1(x: Array) -> tuple[float, float]:
    g = 1.0 + 9.0 * float(x[1:].mean())
    return float(x[0]), g * (1.0 - float(x[0] / g) ** 0.5)


def _dtlz2(x: Array) -> tuple[float, float]:
    radius, angle = 1.0 + float(((x[1:] - 0.5) ** 2).sum()), 0.5 * np.pi * float(x[0])
    return radius * float(np.cos(angle)), radius * float(np.sin(angle))


PROBLEMS: dict[str, Bounded] = {
    "hartmann, sum": _constrained("hartmann6", lambda x: float(x.sum()), 2.0),
    "hartmann, wave": _constrained("hartmann6", lambda x: float(np.sin(8.0 * x[0]) + x[3]), 0.3),
    "branin, ring": _constrained("branin2", lambda x: -float(((x - 0.5) ** 2).sum()), -0.16),
    "rosenbrock, ball": _constrained("rosenbrock5", lambda x: float(((x - 0.2) ** 2).sum()), 0.3),
    "zdt1, bound": Bounded(dimension=5, losses=_zdt1, bounds=(np.inf, 1.0), objectives=2, reference=(1.0, 1.0)),
    "dtlz2, bound": Bounded(dimension=5, losses=_dtlz2, bounds=(0.8, np.inf), objectives=2, reference=(0.8, 1.5)),
}


SEARCHERS: dict[str, Searcher] = {
    "process": tw.GaussianProcessSearcher(),
    "forest": tw.ForestSearcher(),
    "default": tw.DefaultSearcher(),
    "random": tw.RandomSearcher(),
}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=10)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    found: dict[str, dict[str, list[float]]] = {}
    for name, problem in PROBLEMS.items():
        played = {
            searcher: [_play(problem, one, arguments.trials, seed) for seed in range(arguments.seeds)]
            for searcher, one in SEARCHERS.items()
        }
        judge = _mean_regrets if problem.objectives == 1 else _hypervolumes
        found[name] = dict(zip(played, judge(problem, list(played.values())), strict=True))
        progress(f"{name}: " + ", ".join(f"{key} {np.mean(values):.4f}" for key, values in found[name].items()))
    header = ["problem", "measure", *SEARCHERS]
    rows = [
        [name, "regret" if PROBLEMS[name].objectives == 1 else "hypervolume"]
        + [f"{np.mean(values):.3f}" for values in by_searcher.values()]
        for name, by_searcher in found.items()
    ]
    summary = {
        measure: {
            searcher: float(np.mean([found[name][searcher] for name in found if PROBLEMS[name].objectives == count]))
            for searcher in SEARCHERS
        }
        for measure, count in (("mean_regret", 1), ("hypervolume", 2))
    }
    result = {
        "benchmark": "bounds",
        "summary": summary,
        "detail": found,
        "settings": {"trials": arguments.trials, "seeds": arguments.seeds},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    print(table(header, rows))
    finish(result, arguments)
    return result


def _play(problem: Bounded, searcher: Searcher, trials: int, seed: int) -> Array:
    """Return the losses [trials, objectives and constraints] of a search."""
    space = tw.Space.of({f"x{i}": tw.Float(0.0, 1.0) for i in range(problem.dimension)})
    view = SearchView(space, seed, problem.objectives, bounds=problem.bounds)
    for number in range(trials):
        [asked] = searcher.ask(view, [number])
        view.propose(number, asked)
        losses = problem.losses(np.array([asked[f"x{i}"] for i in range(problem.dimension)]))
        view.result(number, losses, epoch=None, complete=True)
    return view.outcomes.copy()


def _mean_regrets(problem: Bounded, played: Sequence[Sequence[Array]]) -> list[list[float]]:
    points = np.random.default_rng(0).random((_POINTS, problem.dimension))
    losses = np.array([problem.losses(point) for point in points])
    best = losses[(losses <= problem.bounds).all(axis=1), 0].min()
    scale = float(np.median(losses[:, 0])) - best

    def regret(outcomes: Array) -> float:
        legal = np.where((outcomes <= problem.bounds).all(axis=1), outcomes[:, 0], np.inf)
        return float(np.minimum(1.0, (np.minimum.accumulate(legal) - best) / scale).mean())

    return [[regret(outcomes) for outcomes in searches] for searches in played]


def _hypervolumes(problem: Bounded, played: Sequence[Sequence[Array]]) -> list[list[float]]:
    reference = np.array(problem.reference)
    volumes = [[hypervolume(o[(o <= problem.bounds).all(axis=1)], reference) for o in searches] for searches in played]
    # Where no search has found a legal point, none is behind.
    most = max(map(max, volumes)) or 1.0
    return [[volume / most for volume in searches] for searches in volumes]


if __name__ == "__main__":
    main()
