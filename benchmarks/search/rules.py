r"""Searchers and rules together: regret over the epochs that a worker has trained, on problems with learning curves.

    python benchmarks/search/rules.py --data DIR --seeds 2 --json

Every study has `--workers` simulated workers; an epoch takes one unit of time, and a mark is a number of whole
trainings that each worker could have done by then. Regret is that of the best validation loss seen at any epoch: 0 is
the best of 1,500 random configurations, 1 their median, and no regret is above 1. All pairs see the same problems and
seeds, so differences to random search under the same rule are paired; intervals: 95 %, bootstrap over studies. Ours run
through `Study.simulate`, Optuna's samplers and pruners on the same clock. LCBench is a fitted surrogate and needs
onnxruntime, Optuna is left out where it is not installed. With `--cells FILE` a run that was cut off goes on.
"""

import argparse
import heapq
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.schedule.paired import Kept, average, shown
from benchmarks.schedule.replays import Watched
from benchmarks.search.curves import CurveProblem, find_curves

import trainwright as tw
from trainwright.cluster import Cluster
from trainwright.schedule import Fixed, PromotionRule, Scheduler
from trainwright.search import Searcher
from trainwright.space import Space
from trainwright.space.axes import Code, Log, RoundedLog

__all__ = ["main"]

MARKS = (0.5, 1.0, 2.0, 3.0)  # whole trainings a worker
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
}
PAIRS = "default+asha,forest+asha,gp+asha,random+asha,optuna-tpe+hyperband,optuna-tpe+median"


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run what is not kept yet, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="holds yahpo_lcbench/ and taskset/")
    parser.add_argument("--families", default="lcbench,taskset")
    parser.add_argument("--pairs", default=PAIRS, metavar="SEARCHER+RULE,...")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--cells", type=Path, metavar="FILE", help="where finished studies are kept")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    pairs = [tuple(pair.split("+")) for pair in arguments.pairs.split(",")]
    for searcher, rule in pairs:
        if searcher not in {*SEARCHERS, "optuna-tpe"} or rule not in RULES:
            parser.error(f"{searcher}+{rule}: known are {', '.join(SEARCHERS)}, optuna-tpe with {', '.join(RULES)}")
    skipped = {}
    if any(searcher.startswith("optuna") for searcher, _ in pairs) and not _has_optuna():
        skipped["optuna-tpe"] = "optuna is not installed"
        pairs = [pair for pair in pairs if not pair[0].startswith("optuna")]
    problems = [p for p in find_curves(arguments.data) if p.family in arguments.families.split(",")]
    skipped |= {
        family: "no data, or no onnxruntime"
        for family in arguments.families.split(",")
        if family not in {problem.family for problem in problems}
    }
    if not problems:
        raise SystemExit(f"nothing to search in {arguments.data}: {skipped}")
    kept = Kept(arguments.cells)
    regrets: dict[str, dict[str, list[list[float]]]] = {}
    for seed in range(arguments.seeds):  # whole seeds first, for a run that is cut off
        for problem in problems:
            for searcher, rule in pairs:
                play = partial(_study, problem, searcher, rule, arguments.workers, seed)
                key = f"{problem.family} {problem.name} {searcher}+{rule} {arguments.workers} {seed}"
                found = kept.of(key, play)
                regrets.setdefault(problem.family, {}).setdefault(f"{searcher}+{rule}", []).append(found)
                progress(f"{key}: {' '.join(f'{regret:.3f}' for regret in found)}")
    result = {"benchmark": "rules", **_judged(regrets)}
    result["summary"]["skipped"] = skipped
    result["settings"] = {
        "workers": arguments.workers,
        "seeds": arguments.seeds,
        "marks": MARKS,
        "problems": {problem.name: problem.family for problem in problems},
    }
    result["environment"] = environment()
    print(table(result["table"]["header"], result["table"]["rows"]))
    finish(result, arguments)
    return result


def _judged(regrets: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> dict[str, Any]:
    """Return mean regrets at all marks, and their differences to random search under the same rule."""
    summary: dict[str, Any] = {}
    rows = []
    for family, pairs in regrets.items():
        for pair, found in pairs.items():
            values = np.array(found)
            reference = pairs.get(f"random+{pair.split('+')[1]}")
            summary[f"{family} {pair}"] = values.mean(axis=0).tolist()
            cells = [f"{value:.2f}" for value in values.mean(axis=0)]
            if reference is not None and not pair.startswith("random"):
                apart = [average(column) for column in (values - np.array(reference)).T]
                summary[f"{family} {pair} minus random"] = apart
                cells.append(shown(apart[-1]))
            rows.append([family, pair, str(len(values)), *cells, *[""] * (len(MARKS) + 1 - len(cells))])
    header = ["family", "searcher and rule", "studies", *(f"after {mark:g}" for mark in MARKS), "minus random (95 %)"]
    return {"summary": summary, "table": {"header": header, "rows": rows}}


def _study(problem: CurveProblem, searcher: str, rule: str, workers: int, seed: int) -> list[float]:
    """Return the regret at each mark."""
    play = _optuna if searcher.startswith("optuna") else _ours
    reports = play(problem, searcher, rule, workers, seed)
    return [
        problem.regret(min((loss for at, loss in reports if at <= mark * problem.length), default=math.inf))
        for mark in MARKS
    ]


def _ours(problem: CurveProblem, searcher: str, rule: str, workers: int, seed: int) -> list[tuple[float, float]]:
    """Return when which losses were reported in a study of ours."""
    until = MARKS[-1] * problem.length
    watched = Watched(RULES[rule](problem.length), until=until, each_epoch=True)
    tw.Study(problem.space, "min loss", seed=seed).simulate(
        Scheduler(watched, Fixed(1)),
        engine=tw.Simulated(cluster=Cluster(1, workers), task=_Training(problem), restart_seconds=0.0),
        searcher=SEARCHERS[searcher](),
        trials=int(workers * until),
        seeds=1,
    )
    return [(at, loss) for at, _, _, loss in watched.reports]


class _Training:
    """A problem as a task of the simulator."""

    def __init__(self, problem: CurveProblem) -> None:
        self._problem = problem
        self.substitutions = 0

    def learning_curves(self, seed: int) -> "_Training":
        """Return itself: nothing is drawn."""
        del seed
        return self

    def of(self, trial: int, params: Mapping[str, Any] | None) -> "_Course":
        """Return the curve of a configuration."""
        del trial
        return _Course(self._problem.curve(params or {}))


class _Course:
    def __init__(self, curve: np.ndarray) -> None:
        self._curve = curve

    def losses(self, epoch: int) -> tuple[float, ...]:
        return (float(self._curve[epoch - 1]),)

    def seconds(self, epoch: int) -> float:
        return float(epoch)


def _has_optuna() -> bool:
    try:
        import optuna
    except ImportError:
        return False
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return True


def _optuna(problem: CurveProblem, searcher: str, rule: str, workers: int, seed: int) -> list[tuple[float, float]]:
    """Return when which losses were reported in a study of Optuna's: defaults, and the length where a pruner asks."""
    import optuna

    del searcher
    pruner = (
        optuna.pruners.HyperbandPruner(max_resource=problem.length)
        if rule == "hyperband"
        else optuna.pruners.SuccessiveHalvingPruner()
        if rule == "asha"
        else optuna.pruners.MedianPruner()
    )
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    reports: list[tuple[float, float]] = []
    running: list[tuple[float, int, Any, np.ndarray, int]] = []  # when the epoch ends, worker, trial, curve, epoch

    def begin(at: float, worker: int) -> None:
        trial = study.ask()
        curve = problem.curve(_suggested(problem.space, trial))
        heapq.heappush(running, (at + 1.0, worker, trial, curve, 1))

    for worker in range(workers):
        begin(0.0, worker)
    while running and running[0][0] <= MARKS[-1] * problem.length:
        at, worker, trial, curve, epoch = heapq.heappop(running)
        loss = float(curve[epoch - 1])
        reports.append((at, loss))
        trial.report(loss, epoch)
        if not math.isfinite(loss):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        elif epoch == len(curve):
            study.tell(trial, loss)
        elif trial.should_prune():
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            heapq.heappush(running, (at + 1.0, worker, trial, curve, epoch + 1))
            continue
        begin(at, worker)
    return reports


def _suggested(space: Space, trial: Any) -> dict[str, Any]:
    """Return what an Optuna trial suggests for a space of numbers."""
    found: dict[str, Any] = {}
    for name, parameter in space.parameters.items():
        if not isinstance(parameter, tw.Float | tw.Int) or isinstance(parameter.axis, Code):
            raise SystemExit(f"{name}: only numbers are known to this benchmark")
        suggest = trial.suggest_int if isinstance(parameter, tw.Int) else trial.suggest_float
        found[name] = suggest(name, parameter.low, parameter.high, log=isinstance(parameter.axis, Log | RoundedLog))
    return found


if __name__ == "__main__":
    main()
