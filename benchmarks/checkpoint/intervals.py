"""How far the rule for the interval lies from the best interval that simulated losses show.

Losses at a constant rate over a grid of cost and recovery; then losses that cluster, where the rule's model is wrong.
The rule for a run that ends is compared with every other number of saves.
"""

import math
from dataclasses import dataclass

import numpy as np
from benchmarks.checkpoint.estimators import ESTIMATORS
from benchmarks.checkpoint.failure_times import LAWS, Failures, best_interval

from trainwright.checkpoint.policy.save_policy import Costs, plan_saves

__all__ = ["Intervals", "compare_intervals"]

_MTBF_SECONDS = (600.0, 86_400.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Intervals:
    """What was found.

    `gaps` has, for each estimator, the largest |interval / best - 1| over the grid; `losses` for each law the largest
    wall time beyond that of the best interval, as a share, when the rule is followed. `young_leaves_at` is the least
    cost / MTBF of the grid at which Young's interval is more than 2 % off.
    """

    cells: int
    failures: int
    gaps: dict[str, float]
    losses: dict[str, float]
    young_leaves_at: float
    horizons: int
    horizon_mistakes: int


def compare_intervals(failures: int = 4_000_000, ratios: int = 24, seed: int = 0) -> Intervals:
    """Simulate so many losses for each law; `ratios` are the costs over MTBF between 0.001 and 0.2."""
    grid = [
        Costs(mtbf_seconds=mtbf, cost_seconds=float(ratio) * mtbf, recovery_seconds=300.0)
        for ratio in np.geomspace(0.001, 0.2, ratios)
        for mtbf in _MTBF_SECONDS
    ]
    gaps = dict.fromkeys(ESTIMATORS, 0.0)
    losses, young_leaves_at = {}, math.inf
    for law in LAWS:
        drawn = Failures(law, number=failures, seed=seed)
        lost = 0.0
        for costs in grid:
            rule = ESTIMATORS["exact"](costs)
            best = best_interval(drawn, costs, rule)
            lost = max(lost, float(drawn.wall_per_useful(costs, rule)[0]) / best.wall_per_useful - 1)
            if law != "exponential":
                continue
            off = {name: abs(advise(costs) / best.interval_seconds - 1) for name, advise in ESTIMATORS.items()}
            gaps = {name: max(gap, off[name]) for name, gap in gaps.items()}
            if off["young"] > 0.02:
                young_leaves_at = min(young_leaves_at, costs.cost_seconds / costs.mtbf_seconds)
        losses[law] = lost
    mistakes, horizons = _horizons(seed)
    return Intervals(
        cells=len(grid),
        failures=failures,
        gaps=gaps,
        losses=losses,
        young_leaves_at=young_leaves_at,
        horizons=horizons,
        horizon_mistakes=mistakes,
    )


def _horizons(seed: int, count: int = 300) -> tuple[int, int]:
    """Compare the number of saves of so many plans with every other number; return the mistakes."""
    generator, mistakes = np.random.default_rng(seed), 0
    for _ in range(count):
        mtbf, ratio, length = 3600.0, 10 ** generator.uniform(-2.5, -0.7), generator.uniform(0.3, 20)
        costs = Costs(mtbf_seconds=mtbf, cost_seconds=ratio * mtbf, recovery_seconds=120.0)
        horizon = length * mtbf
        found = plan_saves(costs, remaining_seconds=horizon)
        wall = {
            n: costs.wall_per_useful(horizon / n - costs.cost_seconds)
            for n in range(1, math.ceil(horizon / costs.cost_seconds))
        }
        mistakes += wall[found.saves or 1] > min(wall.values()) * (1 + 1e-12)
    return mistakes, count
