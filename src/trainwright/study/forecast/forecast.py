"""Forecasts: simulate the same studies under several schedulers, and summarise them with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from trainwright.engine.simulated.settings import Simulated, SimulationLimits
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.state import SimulatedStudy
from trainwright.errors import EngineError, StudyError
from trainwright.schedule import BestStatic, PromotionRule, Scheduler
from trainwright.schedule.rules.promotion_rule import Clone
from trainwright.search import Searcher, SearchView
from trainwright.space import Space
from trainwright.space.configuration import Configuration
from trainwright.study.projections import rungs_of
from trainwright.validators import check, instance_of, integer

__all__ = ["Forecast", "SearchSetup", "Spread", "forecasts"]


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
    the simulated studies by seed.
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
        same = {each.name for each in fields(cls) if hasattr(runs[0], each.name)} - {"trials", "substitutions"}
        spreads = {name: Spread.of([getattr(run, name) for run in runs]) for name in same}
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


def forecasts(
    schedulers: Mapping[str, Scheduler],
    engine: Simulated,
    *,
    seeds: int = 30,
    first_seed: int = 0,
    search: SearchSetup | None = None,
    **budget: Any,
) -> dict[str, Forecast]:
    """Simulate `seeds` studies under each scheduler, all under the same draws.

    `budget` is what ends a study, as `SimulationLimits` has it. Raises `InputError` for what cannot be simulated.
    """
    check(seeds, integer(minimum=1), "simulate: seeds", StudyError)
    a_simulated_engine = instance_of(Simulated, words="tw.Simulated(cluster=tw.Cluster(...), ...)")
    check(engine, a_simulated_engine, "simulate: engine", StudyError)
    if not schedulers:
        raise StudyError("simulate: got no scheduler; give one, or several by name")
    # Every choice of a BestStatic is one more scheduler; the best of them is its forecast.
    choices = {name: _list_choices(scheduler, engine) for name, scheduler in schedulers.items()}
    if engine.task_devices is None:
        # The task's seconds are those of the smallest new trial, the same for all that are compared.
        fewest = min(choice.policy.start for each in choices.values() for choice in each)
        engine = replace(engine, task_devices=fewest)
    limits = SimulationLimits(**budget)

    def summarise(scheduler: Scheduler) -> Forecast:
        numbers = range(first_seed, first_seed + seeds)
        runs = [_simulate_study(scheduler, engine, limits, search, seed) for seed in numbers]
        return Forecast.of(scheduler, runs)

    # A study that ends by itself is best when it ends first; one that time ends, when its best complete trial is.
    measures = ("makespan_seconds", "full_loss") if limits.timeless else ("full_loss", "makespan_seconds")
    return {
        name: min(map(summarise, each), key=lambda found: [getattr(found, measure).mean for measure in measures])
        for name, each in choices.items()
    }


def _list_choices(scheduler: Scheduler, engine: Simulated) -> list[Scheduler]:
    policy = scheduler.policy
    if not isinstance(policy, BestStatic):
        return [scheduler]
    devices = engine.cluster.devices
    found = [replace(scheduler, policy=fixed) for fixed in policy.choices(devices)]
    if not found:
        raise EngineError(f"BestStatic.sizes: got {policy.sizes}, the cluster has {devices} devices; give smaller ones")
    return found


def _simulate_study(
    scheduler: Scheduler,
    engine: Simulated,
    limits: SimulationLimits,
    search: SearchSetup | None,
    seed: int,
) -> SimulatedStudy:
    searching: dict[str, Any] = {}
    if search is not None:
        asked = _SearcherRun(search, scheduler.rule, seed)
        searching = {"configure": asked.configure, "on_result": asked.on_result, "result_epochs": asked.view.ladder}
        searching["objectives"] = search.objectives
    return simulate(scheduler, engine, **asdict(limits), seed=seed, **searching)


class _SearcherRun:
    """A searcher at work in one simulated study: what it sees, and what it proposed."""

    def __init__(self, search: SearchSetup, rule: PromotionRule, seed: int) -> None:
        rule.check_space(search.space)
        self._searcher, self._rule = search.searcher, rule
        self._length = rule.max_epochs
        self.view = SearchView(
            search.space,
            seed,
            search.objectives,
            epochs=self._length,
            rungs=rungs_of(rule),
            bounds=search.bounds,
        )
        self._proposed: dict[int, Configuration] = {}
        self._resting: set[int] = set()

    def configure(self, number: int, clone: Clone | None = None) -> Mapping[str, Any]:
        if clone is None:
            (proposal,) = self._searcher.ask(self.view, [number])
        else:
            parent = self._proposed[clone.parent]
            proposal = self._rule.clone_of(self.view.space, parent, seed=self.view.seed, number=number)
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
