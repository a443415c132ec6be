"""Bounded greedy: from a placement to its best neighbour, as long as that is better by more than noise can feign.

A search over noisy measurements climbs on noise: the best of many is best by luck. So the best neighbour and the
incumbent are measured again, in turns, and the step is taken only if the medians differ by more than a margin. At the
end winner and start are measured in turns once more (A/B/A/B), and that ratio is the one to report.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from trainwright.randomness import rng
from trainwright.serve.placement.cost import Measurement, PlacementCost
from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.placement_space import PlacementSpace

__all__ = ["BoundedGreedy", "SearchResult", "compared"]

_ERRORS = 2.5  # standard errors of a difference that count as luck
_ROUNDING = 1e-9
_MEDIAN = 1.2533  # standard error of a median over that of a mean, of normal noise


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """Where a search ended, why, and what it took."""

    placement: Placement
    value: float  # of the last measurements of winner and start, in turns
    start_value: float
    stopped: str  # "optimum" (nothing is better), "local optimum", "bound reached" (of steps or trials), "time limit"
    steps: int
    tried: int  # different placements that were measured


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedGreedy:
    """DeploymentSettings of the search. The same seed and cost give the same placement, but for a limit of time."""

    max_steps: int = 60  # of one climb
    max_neighbours: int = 128  # of a step; a seeded sample if there are more
    kicks: int = 32  # climbs from a shaken optimum, if measurements are exact; noisy ones cost too much for that
    max_tried: int = 8000  # different placements of all climbs
    margin: float = 0.03  # least relative gain of a step if measurements are noisy
    repeats: int = 5  # of either in a comparison
    max_seconds: float = math.inf
    seed: int = 0

    def search(
        self,
        start: Placement,
        space: PlacementSpace,
        cost: PlacementCost,
        *,
        bound: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> SearchResult:
        """Return the best placement found from `start`, which must fit; nothing exceeds `bound`, so it ends there."""
        # One climb from the start, then climbs from shaken optima: the best end counts.
        climb = _Climb(self, space, cost, clock, ends=clock() + self.max_seconds)
        best, value, stopped = climb.up(start)
        for kick in range(0 if cost.noisy else self.kicks):
            done = stopped == "time limit" or len(climb.kept) >= self.max_tried
            if done or value >= bound * (1.0 - _ROUNDING):
                break
            other, found, ended = climb.up(space.kicked(best, rng(self.seed, "serve-kicks", kick)))
            if found > value + _ROUNDING * abs(value):
                best, value, stopped = other, found, ended
        if value >= bound * (1.0 - _ROUNDING):
            stopped = "optimum"
        # The ratio to report comes from measurements in turns, not from those that guided the search.
        old, new = compared(cost, start, best, self.repeats if cost.noisy else 1)
        return SearchResult(
            placement=best,
            value=new.value,
            start_value=old.value,
            stopped=stopped,
            steps=climb.steps,
            tried=len(climb.kept),
        )


class _Climb:
    """Steps of one search: what was measured is kept, failures too."""

    def __init__(
        self,
        settings: BoundedGreedy,
        space: PlacementSpace,
        cost: PlacementCost,
        clock: Callable[[], float],
        *,
        ends: float,
    ) -> None:
        self.settings, self.space, self.cost, self.clock, self.ends = settings, space, cost, clock, ends
        self.kept: dict[Placement, float] = {}
        # Accepted, of all climbs.
        self.steps = 0

    def up(self, start: Placement) -> tuple[Placement, float, str]:
        """Return the end of one climb, its value, and why it ended."""
        current, value = start, self._measure_values([start], -math.inf)[0]
        for _ in range(self.settings.max_steps):
            if self.clock() > self.ends:
                return current, value, "time limit"
            if len(self.kept) >= self.settings.max_tried:
                return current, value, "bound reached"
            # A step with too many neighbours tries a sample that depends on the step alone, so runs repeat.
            draws = rng(self.settings.seed, "serve-neighbours", self.steps)
            around = self.space.neighbours(current, self.settings.max_neighbours, draws)
            values = self._measure_values(around, value)
            best = max(range(len(around)), key=lambda place: values[place], default=None)
            if best is None or values[best] == -math.inf:
                return current, value, "local optimum"
            better = self._better_value(current, value, around[best], values[best])
            if better is None:
                return current, value, "local optimum"
            current, value = around[best], better
            self.steps += 1
        return current, value, "bound reached"

    def _better_value(self, old: Placement, value: float, new: Placement, found: float) -> float | None:
        """Return the new one's value if it is better than the old one's."""
        if not self.cost.noisy:
            return found if found > value + _ROUNDING * abs(value) else None
        # The best of many noisy values is best by luck, so both are measured again.
        was, now = compared(self.cost, old, new, self.settings.repeats)
        margin = max(self.settings.margin * abs(was.value), _ERRORS * math.hypot(was.spread, now.spread))
        return now.value if was.value == -math.inf < now.value or now.value - was.value > margin else None

    def _measure_values(self, placements: list[Placement], floor: float) -> list[float]:
        # One that was abandoned below an earlier floor of this climb is below the present one; a later climb, which
        # starts lower, sees a bound in its place and may pass it by.
        unknown = [placement for placement in placements if placement not in self.kept]
        for placement, found in zip(unknown, self.cost.measure(unknown, floor), strict=True):
            self.kept[placement] = found.value
        return [self.kept[placement] for placement in placements]


def compared(cost: PlacementCost, old: Placement, new: Placement, repeats: int) -> tuple[Measurement, Measurement]:
    """Return the medians of two placements measured in turns, with the standard errors of these medians."""
    turns = [cost.measure([old, new]) for _ in range(repeats)]
    return _median_measurement([turn[0] for turn in turns]), _median_measurement([turn[1] for turn in turns])


def _median_measurement(found: list[Measurement]) -> Measurement:
    failed = next((one for one in found if one.failed), None)
    # Once is enough: it would fail its users too.
    if failed is not None:
        return failed
    values = [one.value for one in found]
    error = _MEDIAN * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else found[0].spread
    return Measurement(value=statistics.median(values), spread=error, per_unit=found[-1].per_unit)
