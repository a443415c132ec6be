"""Plan a search before it starts: which configurations fit into memory, how a trial scales, the total cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainwright.plan import Oracle, ScalingCurve, Verdict, judge
from trainwright.randomness import rng
from trainwright.schedule import Scheduler
from trainwright.search import Searcher
from trainwright.space import Space
from trainwright.study.forecast.search_cost import ProfileOf, SearchCost, search_cost

__all__ = ["Looked", "SearchPlan", "plan_search"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """One configuration of the space, and the verdict on its memory."""

    params: Mapping[str, Any]
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlan:
    """Verdicts on configurations drawn from the space, the scaling of the first that fits, and the search's cost.

    Curve and cost are None where no configuration fits.
    """

    looked: tuple[Looked, ...]
    curve: ScalingCurve | None
    cost: SearchCost | None

    @property
    def fitting(self) -> int:
        """How many of the configurations fit, as they are or repaired."""
        return sum(each.verdict.runs for each in self.looked)

    @property
    def largest(self) -> Looked:
        """The configuration that wants most memory."""
        return max(self.looked, key=lambda each: each.verdict.wanted_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return the plan's figures, without the simulated studies."""
        states = [each.verdict.state for each in self.looked]
        names = ("device_hours", "device_hours_90", "wall_seconds", "wall_seconds_90", "infeasible", "configurations")
        return {
            "configurations": {state: states.count(state) for state in ("fits", "repaired", "rejected")},
            "largest": {
                "params": dict(self.largest.params),
                "verdict": self.largest.verdict.sentence,
                "bytes": self.largest.verdict.wanted_bytes,
                "allowed_bytes": self.largest.verdict.allowed_bytes,
            },
            "scaling": None if self.curve is None else asdict(self.curve),
            "cost": None if self.cost is None else {name: getattr(self.cost, name) for name in names},
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

    `configurations` are drawn from the space at random and judged on `devices` devices; the other arguments are those
    of `search_cost`.
    """
    drawn = space.decode(space.sample(rng(0, "search cost", 0), configurations))
    looked = []
    curve = None
    for params in drawn:
        profile, batch = profile_of(params)
        verdict = judge(oracle, profile, batch=batch, devices=devices, **settings)
        looked.append(Looked(params=dict(params), verdict=verdict))
        if curve is None and verdict.runs:
            wanted = [devices * size for size in sizes if devices * size <= oracle.cluster.devices]
            curve = oracle.scaling_curve(profile, batch=batch, devices=wanted, **settings)
    cost = None
    if curve is not None:
        cost = search_cost(
            oracle,
            profile_of,
            space=space,
            scheduler=scheduler,
            trials=trials,
            samples=samples,
            searcher=searcher,
            devices=devices,
            seeds=seeds,
            sizes=sizes,
            **settings,
        )
    return SearchPlan(looked=tuple(looked), curve=curve, cost=cost)
