r"""Searchers and rules together: regret over the epochs that a worker has trained, on problems with learning curves.

    python benchmarks/fidelity/run.py --data DIR --seeds 2 --json

Every study has simulated asynchronous workers; an epoch takes one unit of time, and a mark is a number of whole
trainings that each worker could have done by then. Regret is that of the best validation loss seen at any epoch: 0 is
the best of 1,500 random configurations, 1 their median, and no regret is above 1. All methods see the same problems
and seeds, so differences are paired; intervals: 95 %, bootstrap over studies. Ours run through `Study.simulate`, peers
on the same clock, each in its own environment (`make peers`). LCBench is a fitted surrogate and needs onnxruntime. A
family is a folder of DIR; any folder of curves in TaskSet's format is one more. With `--cells FILE` a run that was cut
off goes on. `--problems` and `--until` make a small run, as for peers that take seconds to propose; a method written as
`dyhpo:1` runs 1 seed, and is compared with the others on their studies of that seed.

`summary`: `regret_at_1` and `regret_at_5` by method, the mean of the families' means over all numbers of workers;
`default_behind_random`: the share of tasks on which the default's mean regret at 1 or at 5 is above that of random
search under the same rule.
"""

import argparse
import heapq
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.fidelity.problems import CurveProblem, find_curves
from benchmarks.peers.client import METHODS as PEERS
from benchmarks.peers.client import Peer, missing
from benchmarks.peers.columns import Column
from benchmarks.schedule.paired import Kept, average, shown
from benchmarks.schedule.replays import Watched

import trainwright as tw
from trainwright.cluster import Cluster
from trainwright.schedule import Fixed, PromotionRule, Scheduler
from trainwright.search import Searcher
from trainwright.space.axes import Log, RoundedLog

__all__ = ["main"]

MARKS = (0.5, 1.0, 2.0, 5.0)  # whole trainings a worker
JUDGED = (1.0, 5.0)
SEARCHERS: dict[str, Callable[[], Searcher]] = {
    "default": tw.DefaultSearcher,
    "forest": tw.ForestSearcher,
    "gp": tw.GaussianProcessSearcher,
    "random": tw.RandomSearcher,
}
RULES: dict[str, Callable[[int], PromotionRule]] = {
    "asha": lambda length: tw.ASHA(max_epochs=length),
    "hyperband": lambda length: tw.Hyperband(max_epochs=length),
    "median": lambda length: tw.Median(max_epochs=length),
    "promotion": lambda length: tw.ASHA(max_epochs=length, kind="promotion"),
}
OURS = ("default+asha", "random+asha", "forest+asha", "random+hyperband", "default+median", "random+median")
THEIRS = ("tpe+hyperband", "tpe+median", "smac+hyperband", "mobster", "dyhpo")
DEFAULT, REFERENCE = "default+asha", "random+asha"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One study."""

    family: str
    problem: str
    method: str
    workers: int
    seed: int
    marks: tuple[float, ...] = MARKS

    @property
    def key(self) -> str:
        """Under which its regrets are kept."""
        return f"{self.family} {self.problem} {self.method} {self.workers} {self.seed}"


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run what is not kept yet, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder of families")
    parser.add_argument("--families", metavar="NAME,...", help="of the folder; all if not given")
    parser.add_argument("--problems", metavar="NAME,...", help="of the families; all if not given")
    parser.add_argument("--until", type=float, default=MARKS[-1], metavar="N", help="the last mark, of 0.5, 1, 2 and 5")
    parser.add_argument("--methods", default=",".join(OURS + THEIRS), metavar="NAME[:SEEDS],...")
    parser.add_argument("--workers", default="8,64", metavar="N,...")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1, help="studies that run at once")
    parser.add_argument("--cells", type=Path, metavar="FILE", help="where finished studies are kept")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    if not arguments.data.is_dir():
        parser.error(f"--data: got {arguments.data}, which is no folder; allowed: a folder of families")
    if arguments.seeds < 1 or arguments.processes < 1:
        parser.error("--seeds and --processes: allowed: whole numbers from 1 on")
    methods, skipped = _methods(parser, arguments.methods.split(","), arguments.seeds)
    wanted = None if arguments.families is None else arguments.families.split(",")
    problems = _problems(arguments.data, None if wanted is None else tuple(wanted))
    families = {problem.family for problem in problems.values()}
    skipped |= {
        family: "no data, or what reads it is not installed" for family in wanted or () if family not in families
    }
    if not problems:
        raise SystemExit(f"nothing to search in {arguments.data}: {skipped}")
    if arguments.problems is not None:
        names = arguments.problems.split(",")
        problems = {key: problem for key, problem in problems.items() if problem.name in names}
        if unknown := set(names) - {problem.name for problem in problems.values()}:
            parser.error(f"--problems: got {', '.join(sorted(unknown))}, which is none of the families'")
    marks = tuple(mark for mark in MARKS if mark <= arguments.until)
    if JUDGED[0] not in marks:
        parser.error(f"--until: got {arguments.until:g}; allowed: {JUDGED[0]:g} or more")
    workers = [int(count) for count in arguments.workers.split(",")]
    # Whole seeds first, for a run that is cut off.
    cells = [
        Cell(family=problem.family, problem=problem.name, method=method, workers=count, seed=seed, marks=marks)
        for seed in range(arguments.seeds)
        for count in workers
        for problem in problems.values()
        for method, seeds in methods.items()
        if seed < seeds
    ]
    found = _play_all(cells, arguments.data, wanted, Kept(arguments.cells), arguments.processes)
    result = {"benchmark": "fidelity", **_judge(found, marks)}
    result["summary"]["skipped"] = skipped
    result["settings"] = {
        "workers": workers,
        "seeds": arguments.seeds,
        "marks": marks,
        "problems": {problem.name: problem.family for problem in problems.values()},
    }
    result["environment"] = environment()
    print(table(result["table"]["header"], result["table"]["rows"]))
    finish(result, arguments)
    return result


def _methods(
    parser: argparse.ArgumentParser, words: Sequence[str], seeds: int
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the methods that can run here, each with its number of seeds, and why others cannot."""
    counts = {word.partition(":")[0]: int(word.partition(":")[2] or seeds) for word in words}
    known = [f"{searcher}+{rule}" for searcher in SEARCHERS for rule in RULES] + list(THEIRS)
    for name in counts:
        if name not in known:
            parser.error(f"{name}: known are {', '.join(known)}")
    skipped = {name: why for name in counts if name in PEERS and (why := missing(name))}
    return {name: count for name, count in counts.items() if name not in skipped}, skipped


@cache
def _problems(data: Path, families: tuple[str, ...] | None) -> dict[tuple[str, str], CurveProblem]:
    return {(problem.family, problem.name): problem for problem in find_curves(data, families)}


def _play_all(
    cells: Sequence[Cell], data: Path, wanted: Sequence[str] | None, kept: Kept, processes: int
) -> list[tuple[Cell, list[float]]]:
    """Return the regrets of all cells at all marks."""
    missing_cells = [cell for cell in cells if cell.key not in kept.values]
    families = None if wanted is None else tuple(wanted)
    for cell, regrets in _played(missing_cells, data, families, processes):
        kept.add(cell.key, regrets)
        progress(f"{cell.key}: {' '.join(f'{regret:.3f}' for regret in regrets)}")
    return [(cell, kept.values[cell.key]) for cell in cells]


def _played(
    cells: Sequence[Cell], data: Path, families: tuple[str, ...] | None, processes: int
) -> Iterator[tuple[Cell, list[float]]]:
    if processes == 1:
        yield from ((cell, _play(cell, data, families)) for cell in cells)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from zip(cells, pool.map(_play, cells, [data] * len(cells), [families] * len(cells)), strict=True)


def _play(cell: Cell, data: Path, families: tuple[str, ...] | None) -> list[float]:
    """Return a study's regret at each mark."""
    problem = _problems(data, families)[cell.family, cell.problem]
    reports = (_theirs if cell.method in PEERS else _ours)(problem, cell)
    return [
        problem.regret(min((loss for at, loss in reports if at <= mark * problem.length), default=math.inf))
        for mark in cell.marks
    ]


def _ours(problem: CurveProblem, cell: Cell) -> list[tuple[float, float]]:
    """Return when which losses were reported in a study of ours."""
    searcher, rule = cell.method.split("+")
    until = cell.marks[-1] * problem.length
    watched = Watched(RULES[rule](problem.length), until=until, each_epoch=True)
    tw.Study(problem.space, "min loss", seed=cell.seed).simulate(
        Scheduler(watched, Fixed(1)),
        engine=tw.Simulated(cluster=Cluster(1, cell.workers), task=_Training(problem), restart_seconds=0.0),
        searcher=SEARCHERS[searcher](),
        trials=int(cell.workers * until),
        seeds=1,
    )
    return [(at, loss) for at, _, _, loss in watched.reports]


class _Training:
    """A problem as a task of the simulator."""

    def __init__(self, problem: CurveProblem) -> None:
        self._curve = problem.start()
        self.substitutions = 0

    def learning_curves(self, seed: int) -> "_Training":
        """Return itself: nothing is drawn."""
        del seed
        return self

    def of(self, trial: int, params: Mapping[str, Any] | None) -> "_Course":
        """Return the curve of a configuration."""
        del trial
        return _Course(self._curve(params or {}))


class _Course:
    def __init__(self, curve: np.ndarray) -> None:
        self._curve = curve

    def losses(self, epoch: int) -> tuple[float, ...]:
        return (float(self._curve[epoch - 1]),)

    def seconds(self, epoch: int) -> float:
        return float(epoch)


def _theirs(problem: CurveProblem, cell: Cell) -> list[tuple[float, float]]:
    """Return when which losses were reported in a study of a peer's, whose paused trials go on where they were."""
    columns = [_column(name, parameter) for name, parameter in problem.space.parameters.items()]
    reports: list[tuple[float, float]] = []
    curve_of = problem.start()
    # Of each trial: its curve, and the epochs that it has trained.
    curves: dict[int, np.ndarray] = {}
    epochs: dict[int, int] = {}
    # When an epoch ends, on which worker, of which trial.
    running: list[tuple[float, int, int]] = []
    with Peer(cell.method) as peer:
        peer.open(columns, cell.seed, length=problem.length)

        def begin(at: float, worker: int) -> None:
            started = peer.start()
            if started is None:  # the peer's search has ended: its worker idles
                return
            trial, row = started
            if trial not in curves:
                values = zip(columns, row, strict=True)
                params = {column.name: _value(column, value) for column, value in values}
                curves[trial], epochs[trial] = curve_of(params), 0
            heapq.heappush(running, (at + 1.0, worker, trial))

        for worker in range(cell.workers):
            begin(0.0, worker)
        while running and running[0][0] <= cell.marks[-1] * problem.length:
            at, worker, trial = heapq.heappop(running)
            epochs[trial] += 1
            loss = float(curves[trial][epochs[trial] - 1])
            reports.append((at, loss))
            if peer.report(trial, epochs[trial], loss):
                heapq.heappush(running, (at + 1.0, worker, trial))
            else:
                begin(at, worker)
    return reports


def _column(name: str, parameter: Any) -> Column:
    if isinstance(parameter, tw.Choice):
        return Column(name=name, kind="choice", values=parameter.values)
    log = "log_" if isinstance(parameter.axis, Log | RoundedLog) else ""
    kind: Any = log + ("int" if isinstance(parameter, tw.Int) else "float")
    return Column(name=name, kind=kind, low=parameter.low, high=parameter.high)


def _value(column: Column, value: float) -> Any:
    if column.kind == "choice":
        return column.values[int(value)]
    return int(value) if column.kind.endswith("int") else value


def _judge(found: Sequence[tuple[Cell, list[float]]], marks: Sequence[float]) -> dict[str, Any]:
    """Return means at the marks by method, and paired differences to the default and to random search."""
    # By method and family: the regrets [marks] of each study, by (problem, workers, seed).
    regrets: dict[str, dict[str, dict[tuple[str, int, int], list[float]]]] = {}
    for cell, values in found:
        studies = regrets.setdefault(cell.method, {}).setdefault(cell.family, {})
        studies[cell.problem, cell.workers, cell.seed] = values
    summary: dict[str, Any] = {
        f"regret_at_{mark:g}": {
            method: float(
                np.mean([np.mean([*studies.values()], axis=0)[marks.index(mark)] for studies in by_family.values()])
            )
            for method, by_family in regrets.items()
        }
        for mark in JUDGED
        if mark in marks
    }
    judged = [marks.index(mark) for mark in JUDGED if mark in marks]
    if DEFAULT in regrets and REFERENCE in regrets:
        summary["default_behind_random"] = float(
            np.mean(
                [
                    bool(np.any(np.mean(apart, axis=0)[judged] > 0.0))
                    for family, studies in regrets[DEFAULT].items()
                    for apart in _by_problem(studies, regrets[REFERENCE][family])
                ]
            )
        )
    rows, detail = [], {}
    for method, by_family in regrets.items():
        for family, studies in by_family.items():
            means = np.mean([*studies.values()], axis=0)
            lead = {}
            for other in (DEFAULT, f"random+{method.split('+')[-1]}"):
                if other != method and other in regrets:
                    apart = np.concatenate(_by_problem(studies, regrets[other][family]))
                    lead[other] = [average(column) for column in apart.T]
            detail[f"{family} {method}"] = {"regret": means.tolist(), "minus": lead}
            apart_of = lead.get(DEFAULT)
            cells = [shown(apart_of[mark]) if apart_of else "" for mark in judged]
            rows.append([family, method, str(len(studies)), *(f"{mean:.2f}" for mean in means), *cells])
    rows.sort(key=lambda row: row[0])
    header = ["family", "method", "studies", *(f"after {mark:g}" for mark in marks)]
    header += [f"minus default, after {marks[mark]:g} (95 %)" for mark in judged]
    return {"summary": summary, "detail": detail, "table": {"header": header, "rows": rows}}


def _by_problem(
    studies: Mapping[tuple[str, int, int], list[float]], others: Mapping[tuple[str, int, int], list[float]]
) -> list[np.ndarray]:
    """Return for each problem the differences [studies, marks] of the studies that both have."""
    both = [key for key in studies if key in others]
    return [
        np.array([np.subtract(studies[key], others[key]) for key in both if key[0] == problem])
        for problem in dict.fromkeys(key[0] for key in both)
    ]


if __name__ == "__main__":
    main()
