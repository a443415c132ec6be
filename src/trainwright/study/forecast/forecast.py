"""Forecasts: simulate the same studies under several schedulers, and summarise them with intervals."""

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from trainwright.engine.simulated.record import SimulatedStudy
from trainwright.engine.simulated.settings import Simulated, SimulationLimits
from trainwright.engine.simulated.simulation import simulate
from trainwright.errors import EngineError, StudyError, TrainwrightError
from trainwright.schedule import BestStatic, Scheduler
from trainwright.search import Searcher, SearchView
from trainwright.space import Space
from trainwright.space.configuration import Configuration
from trainwright.study.projections import rungs_of
from trainwright.validators import check, instance_of, integer

__all__ = ["Forecast", "SearchSetup", "Spread", "forecasts", "serve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The mean of a quantity over simulated studies, and the 5 % and 95 % quantiles: nine of ten lie between them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return that of some values; inf where it is inf."""
        low, high = np.quantile(values, [0.05, 0.95], method="closest_observation")
        return cls(mean=math.fsum(values) / len(values), low=float(low), high=float(high))


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What studies of one budget under `scheduler` come to; times in seconds from their start.

    `scheduler` is the one that was simulated: of `BestStatic` the best choice. `trials` is how many the budget allows,
    or how many the first study started where only time ends them; `full_loss` the best last loss of trials of whole
    length (inf where there is none). `stalls` counts the studies in which a
    trial waited for devices for ever, `substitutions` the trials for which a table had not what was asked. `runs` are
    the simulated studies by seed; the first has a Gantt chart if one was asked for.
    """

    scheduler: Scheduler
    trials: int
    makespan_seconds: Spread
    gpu_hours: Spread
    utilisation: Spread
    first_full_seconds: Spread
    full: Spread
    best_loss: Spread
    full_loss: Spread
    resizes: Spread
    failed: Spread
    stalls: int
    substitutions: int
    runs: tuple[SimulatedStudy, ...]

    @classmethod
    def of(cls, scheduler: Scheduler, runs: Sequence[SimulatedStudy]) -> "Forecast":
        """Return what some runs come to."""
        # Figures that a forecast and a simulated study have in common; counts over all studies come below.
        same = {each.name for each in fields(cls)} & {each.name for each in fields(SimulatedStudy)}
        spreads = {name: Spread.of([getattr(run, name) for run in runs]) for name in same - {"trials", "substitutions"}}
        return cls(
            scheduler=scheduler,
            trials=runs[0].trials,
            gpu_hours=Spread.of([run.device_seconds / 3600 for run in runs]),
            stalls=sum(bool(run.stalled) for run in runs),
            substitutions=sum(run.substitutions for run in runs),
            runs=tuple(runs),
            **spreads,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSetup:
    """A searcher that simulated studies ask for the parameters of their trials."""

    searcher: Searcher
    space: Space
    objectives: int = 1
    bounds: tuple[float, ...] | None = None  # of the objectives


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    scheduler: Scheduler
    engine: Simulated
    limits: SimulationLimits
    seed: int
    search: SearchSetup | None
    gantt: bool


def forecasts(
    schedulers: Mapping[str, Scheduler],
    engine: Simulated,
    *,
    trials: int | None = None,
    wall_seconds: float | None = None,
    device_seconds: float | None = None,
    seeds: int = 30,
    first_seed: int = 0,
    search: SearchSetup | None = None,
    processes: int = 1,
    gantt: bool = False,
) -> dict[str, Forecast]:
    """Simulate `seeds` studies under each scheduler, all under the same draws; the processes change nothing but time.

    Raises `InputError` for settings that cannot be simulated.
    """
    limits = SimulationLimits(trials=trials, wall_seconds=wall_seconds, device_seconds=device_seconds)
    a_simulated_engine = instance_of(Simulated, words="tw.Simulated(cluster=tw.Cluster(...), ...)")
    for name, value, validator in (
        ("seeds", seeds, integer(minimum=1)),
        ("processes", processes, integer(minimum=1)),
        ("engine", engine, a_simulated_engine),
    ):
        check(value, validator, f"simulate: {name}", StudyError)
    if not schedulers:
        raise StudyError("simulate: got no scheduler; give one, or several by name")
    # Every choice of a BestStatic is one more scheduler; the choices are merged when all have been simulated.
    choices = {name: _list_choices(scheduler, engine) for name, scheduler in schedulers.items()}
    if engine.task_devices is None:
        # The task's seconds are those of the smallest new trial, the same for all that are compared.
        fewest = min(choice.policy.start for each in choices.values() for choice in each)
        engine = replace(engine, task_devices=fewest)
    numbers = range(first_seed, first_seed + seeds)
    cases = [
        _Case(
            scheduler=choice,
            engine=engine,
            limits=limits,
            seed=seed,
            search=search,
            gantt=gantt and seed == first_seed,
        )
        for each in choices.values()
        for choice in each
        for seed in numbers
    ]
    runs = iter(_run_all(cases, processes))
    found: dict[str, Forecast] = {}
    for name, each in choices.items():
        summaries = [Forecast.of(choice, [next(runs) for _ in numbers]) for choice in each]
        found[name] = min(summaries, key=lambda forecast: (forecast.makespan_seconds.mean, forecast.full_loss.mean))
    return found


def _list_choices(scheduler: Scheduler, engine: Simulated) -> list[Scheduler]:
    policy = scheduler.policy
    if not isinstance(policy, BestStatic):
        return [scheduler]
    devices = engine.cluster.devices
    found = [replace(scheduler, policy=fixed) for fixed in policy.choices(devices)]
    if not found:
        raise EngineError(f"BestStatic.sizes: got {policy.sizes}, the cluster has {devices} devices; give smaller ones")
    return found


def _run_all(cases: Sequence[_Case], processes: int) -> list[SimulatedStudy]:
    processes = min(processes, len(cases))
    if processes == 1:
        return [_run_case(case) for case in cases]
    with ThreadPoolExecutor(processes) as pool:
        # Cases are dealt out in turn, since those of one scheduler take about equally long.
        shares = list(pool.map(_run_elsewhere, [cases[each::processes] for each in range(processes)]))
    return [shares[place % processes][place // processes] for place in range(len(cases))]


def _run_elsewhere(cases: Sequence[_Case]) -> list[SimulatedStudy]:
    """Simulate in a process of its own, which does not run the main script again as multiprocessing's would."""
    done = subprocess.run(
        [sys.executable, "-c", "from trainwright.study.forecast.forecast import serve; serve()"],
        input=pickle.dumps(cases),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise EngineError(
            f"simulate: another process cannot simulate this ({why[0]}); define classes of your own in a module, "
            "or use processes=1"
        )
    found: list[SimulatedStudy] | TrainwrightError = pickle.loads(done.stdout)  # noqa: S301 -- our own
    if isinstance(found, TrainwrightError):
        raise found
    return found


def serve() -> None:
    """Be that process: read cases, write their runs, or the error that refused one."""
    cases: list[_Case] = pickle.load(sys.stdin.buffer)  # noqa: S301 -- our own
    found: list[SimulatedStudy] | TrainwrightError
    try:
        found = [_run_case(case) for case in cases]
    except TrainwrightError as error:
        found = error
    sys.stdout.buffer.write(pickle.dumps(found))


def _run_case(case: _Case) -> SimulatedStudy:
    searching: dict[str, Any] = {}
    if case.search is not None:
        asked = _SearcherRun(case, case.search)
        searching = {"configure": asked.configure, "on_result": asked.on_result, "result_epochs": asked.view.ladder}
        searching["objectives"] = case.search.objectives
    limits = asdict(case.limits)
    return simulate(case.scheduler, case.engine, **limits, seed=case.seed, gantt=case.gantt, **searching)


class _SearcherRun:
    """A searcher at work in one simulated study: what it sees, and what it proposed."""

    def __init__(self, case: _Case, search: SearchSetup) -> None:
        self._searcher = search.searcher
        rule = case.scheduler.rule
        self._length = rule.max_epochs
        self.view = SearchView(
            search.space,
            case.seed,
            search.objectives,
            case.limits.trials,
            epochs=self._length,
            rungs=rungs_of(rule),
            bounds=search.bounds,
        )
        self._proposed: dict[int, Configuration] = {}
        self._resting: set[int] = set()

    def configure(self, number: int) -> Mapping[str, Any]:
        (proposal,) = self._searcher.ask(self.view, [number])
        self._proposed[number] = replace(proposal, number=number)
        self.view.propose(number, self._proposed[number])
        return proposal.params

    def on_result(self, trial: int, epoch: int, losses: tuple[float, ...], rests: bool) -> None:
        # It was promoted: the searcher had seen it rest.
        if trial in self._resting:
            self._resting.remove(trial)
            self.view.propose(trial, self._proposed[trial])
        if not losses:
            self.view.result(trial, None, epoch=epoch or None, complete=False)
            return
        self.view.report(trial, epoch, losses)
        if rests:
            self.view.result(trial, losses, epoch=epoch, complete=epoch == self._length)
            self._resting.add(trial)
