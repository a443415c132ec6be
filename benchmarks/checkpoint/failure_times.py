"""Losses drawn at random: what an interval between checkpoints is worth when nodes fail, by simulation.

Up-times X are drawn once and used for every interval (common random numbers). A loss leaves T useful seconds of each
T + C that had ended P seconds before it, and so were committed: useful = T sum floor(max(X - P, 0) / (T + C)).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.checkpoint.policy.save_policy import Costs
from trainwright.errors import CheckpointConfigError
from trainwright.randomness import rng

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["LAWS", "Best", "Failures", "best_interval"]

LAWS = ("exponential", "weibull", "bursts")
"""Constant rate; Weibull of shape 0.7 (losses cluster, as in many logs); every fourth soon after the one before."""

_SHAPE = 0.7
_BURST_SHARE, _BURST_MEAN = 0.25, 0.05


class Failures:
    """Up-times between losses, drawn from a law with mean 1 and scaled to each `mtbf_seconds`."""

    def __init__(self, law: str = "exponential", *, number: int = 1_000_000, seed: int = 0) -> None:
        if law not in LAWS:
            raise CheckpointConfigError(f"Losses.law: got {law!r}; allowed: {', '.join(LAWS)}")
        if number < 1:
            raise CheckpointConfigError(f"Losses.number: got {number!r}; allowed: an integer >= 1")
        self.law = law
        self.number = number
        drawn = _draw(law, number, rng(seed, f"losses {law}", 0))
        # Sorted once, so that one interval costs a search per commit in the longest up-time, not a pass over all.
        self._uptimes: NDArray[np.float64] = np.sort(drawn)
        self._mean = float(drawn.mean())

    def wall_per_useful(self, costs: Costs, intervals_seconds: "ArrayLike") -> "NDArray[np.float64]":
        """Return the wall seconds for one useful second at each interval; infinite where nothing is ever committed."""
        mtbf = costs.mtbf_seconds
        wall = mtbf * self._mean + (costs.seconds_per_failure - mtbf)
        found = []
        for interval in np.atleast_1d(np.asarray(intervals_seconds, dtype=np.float64)):
            spacing = (interval + costs.cost_seconds) / mtbf
            commits = np.arange(costs.persist_seconds / mtbf + spacing, self._uptimes[-1], spacing)
            survived = self.number - np.searchsorted(self._uptimes, commits)
            useful = interval * survived.sum() / self.number
            found.append(wall / useful if useful > 0 else math.inf)
        return np.array(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The best interval that a simulation found, and what it costs."""

    interval_seconds: float
    wall_per_useful: float


def best_interval(losses: Failures, costs: Costs, around_seconds: float) -> Best:
    """Return the minimum of a quartic in log T, fitted to the simulated wall time within 50 % of `around_seconds`.

    Where the minimum lies at an end of that range, the search goes on around it.
    """
    for _ in range(20):
        logs = np.linspace(math.log(0.5), math.log(1.5), 41)
        wall = losses.wall_per_useful(costs, around_seconds * np.exp(logs))
        if not np.isfinite(wall).all():
            raise CheckpointConfigError(
                f"best_interval: no commit survives intervals around {around_seconds:.3g} s; "
                "allowed: a cost well below the longest up-time"
            )
        fitted = np.polynomial.Polynomial.fit(logs, wall, 4)
        fine = np.linspace(logs[0], logs[-1], 20_001)
        least = float(fine[np.argmin(fitted(fine))])
        if 0.05 < (least - logs[0]) / (logs[-1] - logs[0]) < 0.95:
            break
        around_seconds *= math.exp(least)
    interval = around_seconds * math.exp(least)
    return Best(interval_seconds=interval, wall_per_useful=float(losses.wall_per_useful(costs, interval)[0]))


def _draw(law: str, number: int, generator: np.random.Generator) -> "NDArray[np.float64]":
    if law == "weibull":
        return generator.weibull(_SHAPE, number) / math.gamma(1 + 1 / _SHAPE)
    drawn = generator.exponential(size=number)
    if law == "bursts":
        usual = (1 - _BURST_SHARE * _BURST_MEAN) / (1 - _BURST_SHARE)
        drawn *= np.where(generator.random(number) < _BURST_SHARE, _BURST_MEAN, usual)
    return drawn
