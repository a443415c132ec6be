"""Plan a search before it starts: which configurations fit into memory, how a trial scales, the total cost.

The cost comes from simulated studies whose epochs take what the oracle predicts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from trainwright.engine.simulated.settings import Scaling, Simulated
from trainwright.engine.simulated.task import Parametric
from trainwright.errors import TrainwrightError
from trainwright.plan import Oracle, judge
from trainwright.plan.forecast import ScalingCurve
from trainwright.plan.parallel.precision import Profiles
from trainwright.plan.verdict import Verdict
from trainwright.randomness import rng
from trainwright.schedule import Scheduler
from trainwright.search import RandomSearcher, Searcher
from trainwright.space import Space
from trainwright.study.forecast.forecast import SearchSetup, forecasts

__all__ = ["Predicted", "ProfileOf", "SearchCost", "SearchPlan", "plan_search"]

ProfileOf = Callable[[Mapping[str, Any]], tuple[Profiles, int]]
"""Gives a configuration's profile, and its batch."""


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Predicted:
    """The seconds of an epoch of a configuration, as the oracle predicts them; None if it does not fit.

    It does not if nothing that is repaired lets it run on `devices` devices. `asked` keeps what was predicted.
    """

    oracle: Oracle
    profile_of: ProfileOf
    samples: int
    devices: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    asked: dict[tuple[tuple[str, str], ...], float | None] = field(default_factory=dict)

    def epoch_seconds(self, params: Mapping[str, Any]) -> float | None:
        """Return the seconds of an epoch of a configuration, None if it does not fit."""
        # Searchers propose a configuration again in many simulated studies; the oracle is asked once.
        key = tuple(sorted((name, repr(value)) for name, value in params.items()))
        if key not in self.asked:
            profile, batch = self.profile_of(params)
            plan = judge(self.oracle, profile, batch=batch, devices=self.devices, **self.settings).plan
            steps = math.ceil(self.samples / batch)
            self.asked[key] = None if plan is None else steps * plan.seconds_per_iteration
        return self.asked[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlan:
    """Verdicts on configurations drawn from the space, the scaling of the first that fits, and the search's cost."""

    judged: Sequence[tuple[Mapping[str, Any], Verdict]]
    curve: ScalingCurve
    cost: SearchCost

    def to_json(self) -> dict[str, Any]:
        """Return the plan's figures, without the simulated studies."""
        states = [verdict.state for _, verdict in self.judged]
        params, largest = _find_largest(self.judged)
        return {
            "configurations": {state: states.count(state) for state in ("fits", "repaired", "rejected")},
            "largest": {
                "params": dict(params),
                "verdict": largest.sentence,
                "bytes": largest.wanted_bytes,
                "allowed_bytes": largest.allowed_bytes,
            },
            "scaling": asdict(self.curve),
            "cost": asdict(self.cost),
        }


def plan_search(
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
    configurations: int = 16,
    **settings: Any,
) -> SearchPlan:
    """Return what is known of a search of `trials` trials before it starts.

    `configurations` are drawn from the space at random and judged on `devices` devices, those of a new trial; on other
    `sizes` times as many a trial is as fast as the scaling curve of the first that fits says. The cost is that of
    `seeds` simulated studies; `samples` are those of an epoch, `settings` precision, optimizer and max_memory_bytes.
    The searcher proposes as in a study (default: at random), but is told of losses that mean nothing. Raises
    `TrainwrightError` if none of the configurations fits.
    """
    judged = []
    curve = None
    for params in space.decode(space.sample(rng(0, "search cost", 0), configurations)):
        profile, batch = profile_of(params)
        verdict = judge(oracle, profile, batch=batch, devices=devices, **settings)
        judged.append((params, verdict))
        # One that fits only when it is repaired has no time on its own devices: another is looked for.
        if verdict.runs and (curve is None or math.isinf(curve.seconds[0])):
            wanted = [devices * size for size in sizes if devices * size <= oracle.cluster.devices]
            curve = oracle.scaling_curve(profile, batch=batch, devices=wanted, **settings)
    if curve is None:
        raise TrainwrightError(
            f"plan: none of {len(judged)} configurations fits; the largest "
            f"{_find_largest(judged)[1].sentence}; give more memory, or a smaller space"
        )
    predicted = Predicted(oracle=oracle, profile_of=profile_of, samples=samples, devices=devices, settings=settings)
    engine = Simulated(
        cluster=oracle.cluster,
        task=Parametric(seconds_of=predicted.epoch_seconds),
        task_devices=devices,
        scaling=Scaling(curve=curve.speedups(devices=devices)) if math.isfinite(curve.seconds[0]) else Scaling(),
    )
    search = SearchSetup(searcher=searcher or RandomSearcher(), space=space)
    runs = forecasts({"": scheduler}, engine, trials=trials, seeds=seeds, search=search)[""].runs
    hours = [run.device_seconds / 3600 for run in runs]
    walls = [run.makespan_seconds for run in runs]
    asked = list(predicted.asked.values())
    cost = SearchCost(
        device_hours=median(hours),
        device_hours_90=float(np.quantile(hours, 0.9)),
        wall_seconds=median(walls),
        wall_seconds_90=float(np.quantile(walls, 0.9)),
        infeasible=sum(seconds is None for seconds in asked) / len(asked),
        configurations=len(asked),
        trials=trials,
    )
    return SearchPlan(judged=judged, curve=curve, cost=cost)


def _find_largest(judged: Sequence[tuple[Mapping[str, Any], Verdict]]) -> tuple[Mapping[str, Any], Verdict]:
    """Return the configuration that wants most memory, and its verdict."""
    return max(judged, key=lambda pair: pair[1].wanted_bytes)
