"""Estimate the cost of a search from simulated studies whose epochs take what the oracle predicts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from trainwright.engine.simulated.settings import Scaling, Simulated
from trainwright.engine.simulated.task import LearningCurve, LearningCurves, Parametric
from trainwright.errors import StudyError
from trainwright.plan import Oracle, judge
from trainwright.plan.precisions import Profiles
from trainwright.randomness import rng
from trainwright.schedule import Scheduler
from trainwright.search import RandomSearcher, Searcher
from trainwright.space import Space
from trainwright.study.forecast.forecast import Forecast, SearchSetup, forecasts

__all__ = ["Predicted", "ProfileOf", "SearchCost", "search_cost"]

ProfileOf = Callable[[Mapping[str, Any]], tuple[Profiles, int]]
"""Gives a configuration's profile, and its batch."""

_LOOKED_AT = 16  # configurations, for one that fits
_AT_ONCE = 1e-6  # seconds of a trial that is refused before it starts


@dataclass(frozen=True, kw_only=True)
class SearchCost:
    """Device-hours and wall time over simulated studies, and how many configurations do not fit into memory."""

    device_hours: float
    """Median."""
    device_hours_90: float
    """What nine of ten studies stay below."""
    wall_seconds: float
    wall_seconds_90: float
    infeasible: float
    """Share of the different configurations that were looked at."""
    configurations: int
    trials: int
    forecast: Forecast


@dataclass(frozen=True, kw_only=True, eq=False)
class Predicted:
    """A task of the simulated engine: losses are parametric, an epoch takes the predicted seconds of its configuration.

    A configuration that does not fit on `devices` devices, whatever is repaired, ends at once with an infinite loss.
    `asked` keeps what was predicted of each configuration, None where it does not fit.
    """

    oracle: Oracle
    profile_of: ProfileOf
    samples: int
    devices: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    losses: Parametric = field(default_factory=Parametric)
    asked: dict[tuple[tuple[str, str], ...], float | None] = field(default_factory=dict)

    def learning_curves(self, seed: int) -> LearningCurves:
        """Return the learning curves of the study with this seed."""
        return _Courses(self, seed)

    def epoch_seconds(self, params: Mapping[str, Any]) -> float | None:
        """Return the seconds of an epoch of a configuration, None if it does not fit."""
        key = tuple(sorted((name, repr(value)) for name, value in params.items()))
        if key not in self.asked:
            profile, batch = self.profile_of(params)
            plan = judge(self.oracle, profile, batch=batch, devices=self.devices, **self.settings).plan
            steps = math.ceil(self.samples / batch)
            self.asked[key] = None if plan is None else steps * plan.seconds_per_iteration
        return self.asked[key]


class _Courses:
    substitutions = 0

    def __init__(self, task: Predicted, seed: int) -> None:
        self._task, self._parametric = task, task.losses.learning_curves(seed)

    def of(self, trial: int, params: Mapping[str, Any] | None) -> LearningCurve:
        if params is None:
            raise StudyError("search_cost: trials have no parameters; give a searcher")
        return _Course(self._parametric.of(trial, params), self._task.epoch_seconds(params))


@dataclass(slots=True)
class _Course:
    parametric: LearningCurve
    epoch_seconds: float | None

    def losses(self, epoch: int) -> tuple[float, ...]:
        return (math.inf,) if self.epoch_seconds is None else self.parametric.losses(epoch)

    def seconds(self, epoch: int) -> float:
        return epoch * (_AT_ONCE if self.epoch_seconds is None else self.epoch_seconds)


def search_cost(
    oracle: Oracle,
    profile_of: ProfileOf,
    *,
    space: Space,
    scheduler: Scheduler,
    trials: int,
    samples: int,
    searcher: Searcher | None = None,
    devices: int = 1,
    seeds: int = 10,
    sizes: tuple[int, ...] = (1, 2, 4, 8),
    **settings: Any,
) -> SearchCost:
    """Return what `trials` trials under a scheduler come to on the oracle's cluster, over `seeds` simulated studies.

    `samples` are those of an epoch, `devices` those of a new trial; on other `sizes` times as many a trial is as fast
    as the scaling curve of the first configuration that fits says. `settings` are precision, optimizer and
    max_memory_bytes. The searcher proposes as in a study (default: at random), but is told of losses that mean nothing.
    """
    task = Predicted(oracle=oracle, profile_of=profile_of, samples=samples, devices=devices, settings=settings)
    search = SearchSetup(searcher=searcher or RandomSearcher(), space=space)
    engine = Simulated(
        cluster=oracle.cluster,
        task=task,
        task_devices=devices,
        scaling=_measure_scaling(oracle, profile_of, space, devices=devices, sizes=sizes, settings=settings),
    )
    forecast = forecasts({"": scheduler}, engine, trials=trials, seeds=seeds, search=search)[""]
    hours = [run.device_seconds / 3600 for run in forecast.runs]
    walls = [run.makespan_seconds for run in forecast.runs]
    looked_at = list(task.asked.values())
    return SearchCost(
        device_hours=median(hours),
        device_hours_90=float(np.quantile(hours, 0.9)),
        wall_seconds=median(walls),
        wall_seconds_90=float(np.quantile(walls, 0.9)),
        infeasible=sum(each is None for each in looked_at) / len(looked_at),
        configurations=len(looked_at),
        trials=trials,
        forecast=forecast,
    )


def _measure_scaling(
    oracle: Oracle,
    profile_of: ProfileOf,
    space: Space,
    *,
    devices: int,
    sizes: tuple[int, ...],
    settings: Mapping[str, Any],
) -> Scaling:
    """Return the speed-ups of the first of sixteen random configurations that fits."""
    wanted = [devices * size for size in sizes if devices * size <= oracle.cluster.devices]
    for params in space.decode(space.sample(rng(0, "search cost", 0), _LOOKED_AT)):
        profile, batch = profile_of(params)
        curve = oracle.scaling_curve(profile, batch=batch, devices=wanted, **settings)
        if curve.feasible[0]:
            return Scaling(curve=curve.speedups(devices=devices))
    return Scaling()
